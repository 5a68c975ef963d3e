"""The page: every migration of every source, in a browser. It reads the sidecar and keeps nothing of its own.

What must stay true: where sources and logins come from is handed in or asked of Airflow (`access`); no answer holds a
secret (`vreplication/masking.py`); an unreachable source costs its budget and no more (`asking`).
"""

DAG = "online_ddl"
"""Whose rights decide who may look and act; whose runs have a page of ours as a tab."""
