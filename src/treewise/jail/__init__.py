"""The inside of `treewise.sandbox`: a supervisor process, and what the Linux kernel offers it to lock a program in.

It runs in an interpreter of its own, started for each program, so it imports little, and nothing else of treewise.
"""
