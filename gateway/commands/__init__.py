"""The commands of `pairgate`: their arguments, what they print, and their exit codes."""
