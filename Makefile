# Each target is a command of tools/bootstrap.py, which needs nothing but Python: `make help` lists them.

PYTHON ?= python3

.PHONY: help book check test exercises mutants grade format lock clean env engines

help book check test exercises mutants grade format lock clean env engines:
	@$(PYTHON) tools/bootstrap.py $@ $(ARGS)

.DEFAULT_GOAL := help
