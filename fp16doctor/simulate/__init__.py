"""A GPU on a CPU: a script that asks for CUDA runs where there is none.

Must not know what watches the run.
"""
