"""The face towards Apache Airflow: connections, operators, triggers, the plugin. Decisions are made below."""
