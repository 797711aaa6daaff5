# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean
demo: $(STAMP)
	$(VENV)/bin/kimistream run demo --prompt "The capital of France is" --max-tokens 8 --memory 700MB

test: $(STAMP)
	$(PY) -m pytest

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(STAMP)
	$(PY) benchmarks/run_all.py

# The environment is made with `python3 -m venv`, or with `uv` where that is what there is.
$(STAMP): pyproject.toml
	@if python3 -m venv $(VENV) 2>/dev/null; then $(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	elif command -v uv >/dev/null; then uv venv --clear --quiet $(VENV) && uv pip install --quiet --python $(PY) -e '.[dev]'; \
	else echo "kimistream needs python3 with the venv module (Debian: apt install python3-venv) or uv" >&2; exit 1; fi
	@touch $@

clean:
	rm -rf $(VENV) build dist
