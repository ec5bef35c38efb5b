import sys,subprocess,time,os
sys.path.insert(0,'tests/gpu')
from workers import launch
def t(f,*a,**k):
    s=time.time()
    try: print(f(*a,**k)[-3000:])
    except AssertionError as e: print("FAILED",a,str(e)[-2500:])
    print(f"  {time.time()-s:.1f} s",flush=True)
def b(*a,timeout=100,env={}):
    s=time.time()
    try:
        r=subprocess.run([sys.executable,"-m","coccl_dsl.cli.bench",*a],timeout=timeout,capture_output=True,text=True,env=os.environ|env); print("\n".join(l for l in r.stdout.splitlines()[3:])); print(r.stderr[-1500:] if r.returncode else "")
    except subprocess.TimeoutExpired as e: print("TIMEOUT",(e.stdout or b"")[-3000:],(e.stderr or b"")[-2000:])
    print(env,a[-1],f"  {time.time()-s:.1f} s",flush=True)
t(launch,"equality",2,"--transports","symm","--algorithms","two_shot","all_to_all_direct","--compressors","int8","--dtypes","bfloat16","--depths","2",env={"COCCL_FAR_PROGRAMS":"3"},timeout=60)
for p in ("132","264","396","528"):
    b("all_gather","all_to_all","all_reduce","--set","int8","int4","-b","256M","-e","256M","--repeats","3","-n","10","--no-f32","--slices","4",timeout=40,env={"COCCL_FAR_PROGRAMS":p})
b("all_gather","all_to_all","all_reduce","reduce_scatter","--set","int8","int4","-b","256M","-e","256M","--repeats","3","-n","10","--no-f32","--slices","2",timeout=40,env={"COCCL_FAR_PROGRAMS":"264"})
