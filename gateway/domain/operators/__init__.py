"""Orders of operators: control of a process, and redrive of dead letters."""
