import sys,subprocess,time
sys.path.insert(0,'tests/gpu')
from workers import launch
def t(f,*a,**k):
    s=time.time()
    try: print(f(*a,**k)[-3000:])
    except AssertionError as e: print("FAILED",a,str(e)[-2500:])
    print(f"  {time.time()-s:.1f} s",flush=True)
t(launch,"equality",2,"--transports","symm","--algorithms","two_shot","ring","all_to_all_direct","all_gather_direct","--compressors","int8","--dtypes","bfloat16","--depths","1","2","4",timeout=60)
def b(*a,timeout=100):
    s=time.time()
    try:
        r=subprocess.run([sys.executable,"-m","coccl_dsl.cli.bench",*a],timeout=timeout,capture_output=True,text=True); print("\n".join(r.stdout.splitlines()[3:])); print(r.stderr[-3000:] if r.returncode else "")
    except subprocess.TimeoutExpired as e: print("TIMEOUT",(e.stdout or b"")[-3000:],(e.stderr or b"")[-2000:])
    print(a[-1],f"  {time.time()-s:.1f} s",flush=True)
for d in ("1","2","4","8"):
    b("all_reduce","--set","int8","int4","-b","16M","-e","1G","--mode","graph",*(["eager"] if d in "12" else []),"--repeats","3","--no-f32","--slices",d,timeout=60)
    b("reduce_scatter","all_gather","all_to_all","send_recv","--set","int8","int4","-b","256M","-e","256M","--repeats","3","--no-f32","--slices",d,timeout=60)
