"""Private servers, live workloads and a demo: what the tests, the benchmarks and `make demo` stand on.

What must stay true: nothing here is part of the wheel; a server of ours listens on 127.0.0.1 only, keeps all of its
files in the folder that it was given, and is ended by its process id.
"""
