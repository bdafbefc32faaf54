"""The commands of `pairgate`: their arguments, their output, and their exit codes."""
