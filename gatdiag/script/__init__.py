"""Any training script, unedited: `gatdiag run train.py` records what it trains.

Python itself runs the script, in the process of the command, so that `__main__`, `sys.argv`, `sys.path`, exceptions and
the exit status are as with `python train.py`. A script can see two variables of the environment, the module
`sitecustomize`, and handlers of SIGTERM and SIGHUP.

- `launch`: the command line and the environment of that Python
- `site/sitecustomize.py`: Python imports it before the script; it calls `process.begin`
- `process`: waits until the script imports torch, and concludes when it ends; torch is not imported here
- `watcher`: concludes if the script is killed
- `trainings`: optimizer -> the model that it trains -> a recorder
"""
