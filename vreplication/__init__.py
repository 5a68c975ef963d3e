"""Change and move live MySQL and MariaDB tables without losing a write.

The rooms of this package are floors; imports go down only (docs/design/architecture.md):

    10 airflow                              the face towards Airflow: operators, triggers, plugin
    9  cli  ui                              faces: parse, call, show
    8  workflows  backfill                  online_ddl: the flow of one workflow on one screen
    7  cutover                              gate reasons, blockers, attempts
    6  planning                             spec, checks, plan, explain
    5  rowcopy  apply  progress  verify     the work
    4  changes                              matcher, watermark
    3  binlog  state                        reading the log; the sidecar
    2  schema                               table model, shadow, source -> target mapping
    1  mysql                                connections, server facts, quoting, SQL text
    0  errors  names  phases  settings  clock  pausepoints
"""

__version__ = "0.1.0"
