"""`python -m kvxfer_vllm.pd`."""

from kvxfer_vllm.pd.cli import main

if __name__ == "__main__":
    main(prog_name="python -m kvxfer_vllm.pd")
