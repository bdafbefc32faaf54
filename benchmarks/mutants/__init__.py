"""
Mutation testing: each rule of a module is made wrong, once in each way, and a test must notice.

`mutmut` leaves out decorated functions and all code outside of functions, which here are the
properties and the tables; `cosmic-ray` starts a process and collects all tests for each mutant.
"""
