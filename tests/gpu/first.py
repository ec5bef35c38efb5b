import sys,subprocess,time
sys.path.insert(0,'tests/gpu')
from workers import launch
def t(f,*a,**k):
    s=time.time()
    try: print(f(*a,**k)[-3000:])
    except AssertionError as e: print("FAILED",a,str(e)[-3500:])
    print(f"  {time.time()-s:.1f} s",flush=True)
t(launch,"equality",2,"--transports","symm","torch","nccl","--algorithms","two_shot","ring","reduce_scatter_direct","--compressors","int8","--dtypes","bfloat16","--depths","1","2",timeout=100)
t(launch,"equality",2,"--transports","symm","--algorithms","one_shot","halving_doubling","all_gather_direct","three_shot","sdp4bit","--compressors","int4","--dtypes","float32",timeout=80)
def b(*a,timeout=100):
    s=time.time()
    try: print(subprocess.run([sys.executable,"-m","coccl_dsl.cli.bench",*a],timeout=timeout,capture_output=True,text=True)); 
    except subprocess.TimeoutExpired as e: print("TIMEOUT",(e.stdout or b"")[-3000:],(e.stderr or b"")[-2000:])
    print(f"  {time.time()-s:.1f} s",flush=True)
def b(*a,timeout=100):
    s=time.time()
    try:
        r=subprocess.run([sys.executable,"-m","coccl_dsl.cli.bench",*a],timeout=timeout,capture_output=True,text=True); print(r.stdout[-6000:]); print(r.stderr[-3000:] if r.returncode else "")
    except subprocess.TimeoutExpired as e: print("TIMEOUT",(e.stdout or b"")[-3000:],(e.stderr or b"")[-2000:])
    print(f"  {time.time()-s:.1f} s",flush=True)
b("all_reduce","--set","int8","int4","-b","16M","-e","256M","--mode","graph","eager","--repeats","3",timeout=120)
b("reduce_scatter","all_gather","all_to_all","send_recv","--set","int8","int4","-b","256M","-e","256M","--repeats","3","--no-f32",timeout=100)
