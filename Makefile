PYTHON ?= python3
SOURCES := $(wildcard gateway tests benchmarks examples)
CORES := $(shell nproc 2>/dev/null || echo 2)
# More than there are cores: many tests wait for other processes, most of their time.
WORKERS ?= $(shell expr $(CORES) + 4)
# Proton is compiled for `make test`; these import it.
OF_PROTON := tests/benchmarks/test_amqp_engine.py tests/fuzz/test_fuzz.py tests/net/amqp/test_proton.py tests/wire/amqp/test_two_engines.py
WITHOUT_PROTON := $(OF_PROTON:%=--ignore=%)

# Debian packages, installed when they are missing.
TEST_PACKAGES := beanstalkd chromium curl libfaketime libnginx-mod-stream nginx-light prometheus rabbitmq-server strace systemd
# What compiles Qpid Proton, a foreign peer of AMQP for tests and benchmarks.
PROTON_PACKAGES = $(shell command -v gcc >/dev/null || echo gcc libc6-dev) $(shell $(PYTHON) -c 'import os, sysconfig; \
	print("" if os.path.exists(sysconfig.get_path("include") + "/Python.h") else "python3-dev")')
# With them Proton has TLS.
TLS_PACKAGES := libssl-dev pkg-config
BENCH_PACKAGES := nginx-light rabbitmq-server wrk

INSTALL := -m pip install --quiet --disable-pip-version-check
ITSELF := --no-deps --no-build-isolation --editable .

# The many processes that the tests start find their modules compiled.
export PYTHONDONTWRITEBYTECODE :=

.DELETE_ON_ERROR:
.PHONY: run quick test check bench docs test-long test-documented moves sim mutants soak fuzz chaos honesty collect ruff flake8 flake8-tests mypy layers references clean

run: .venv/.run-stamp
	.venv/bin/pairgate demo

# Without root, Debian packages and servers.
quick: .venv/.test-stamp
	.venv/bin/python -m pytest --numprocesses=$(CORES) --dist=worksteal $(WITHOUT_PROTON) -m 'not (slow or long or live or shared or powercut)'

test: .venv/.test-stamp .venv/.proton-tls-stamp .venv-legacy/.stamp .venv-azure/.stamp .venv-openapi/.stamp .venv-docs/.stamp .venv-kubernetes/.stamp .node/.stamp .rabbitmq-4/.stamp
	@$(call debian,$(TEST_PACKAGES))
	.venv/bin/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

# Side by side; what each one says comes in one piece.
check: .venv/.test-stamp
	@$(MAKE) --no-print-directory --keep-going --jobs=$(CORES) --output-sync collect flake8-tests flake8 mypy ruff layers

bench: .venv/.test-stamp .venv/.proton-stamp .venv-azure/.stamp .node/.stamp
	@$(call debian,$(BENCH_PACKAGES))
	.venv/bin/python -m benchmarks.page $(if $(SHORT),--short)

# The documentation site in build/docs/site, with each link checked.
docs: .venv/.test-stamp .venv-docs/.stamp
	.venv/bin/python -m tests.site

# The parts of docs/ that are written from conf/pairgate.toml and from the code, again.
references: .venv/.test-stamp
	.venv/bin/python -m tests.references

# The namespaces of our own against the naive model, elsewhere each time, and after many more crashes.
test-long: .venv/.test-stamp
	MACHINE_EXAMPLES=5000 .venv/bin/python -m pytest tests/brokers/test_machine.py -k documented
	CRASH_STATES=100000 .venv/bin/python -m pytest tests/store/embedded/test_crash_states.py -k no_crash

# The documented pair on RabbitMQ, healthy for five minutes with its own intervals.
test-documented: .venv/.test-stamp
	PAIRGATE_WATCHED=300 .venv/bin/python -m pytest -o faulthandler_timeout=900 tests/e2e/test_rabbitmq_documented.py

# A queue moves between each two kinds of namespaces, its gateway killed in each stage; some twelve minutes.
moves: .venv/.test-stamp .node/.stamp .rabbitmq-4/.stamp
	@$(call debian,$(TEST_PACKAGES))
	PAIRGATE_MOVES=all .venv/bin/python -m pytest tests/extensions/move/test_killed_processes.py

# Simulated hours: make sim HOURS=1000 SEED=0 JOBS=2
sim: .venv/.test-stamp
	.venv/bin/python -m tests.simulation --hours $(or $(HOURS),10) --seed $(or $(SEED),0) --jobs $(or $(JOBS),1) \
	  --load $(or $(LOAD),1)

# Each rule of the core made wrong in each way: make mutants MODULES="domain/failover pairing"
mutants: .venv/.test-stamp
	.venv/bin/python -m benchmarks.mutants $(MODULES)

# Each of them (or those in TARGETS) as long as you like: make fuzz SECONDS=3600 TARGETS="sql config"
fuzz: .venv/.test-stamp .venv/.proton-stamp
	.venv/bin/python -m tests.fuzz $(TARGETS) $(or $(SECONDS),300)

# Real processes, harmed under load; some forty minutes, with QUICK=1 a quarter of an hour.
# The page: build/chaos/index.html.
chaos: .venv/.test-stamp .node/.stamp
	@$(call debian,$(TEST_PACKAGES))
	.venv/bin/python -m benchmarks.chaos.run $(if $(QUICK),--quick)

# What each process says in an outage, held against the queues; some fifty minutes: make honesty ONLY="embedded, own"
honesty: .venv/.test-stamp
	@$(call debian,$(TEST_PACKAGES))
	.venv/bin/python -m benchmarks.honesty --only "$(ONLY)"

# A pair under mixed load for long, with a fault every 20 s: make soak MINUTES=60. The plots: build/soak.svg.
soak: .venv/.test-stamp
	.venv/bin/python -m benchmarks.soak --minutes $(or $(MINUTES),60)

# The parts of `make check`.

# All tests can be imported; then each worker of `make test` finds them compiled.
collect:
	@echo collect tests
	@found=$$(.venv/bin/python -m pytest --collect-only -qq $(WITHOUT_PROTON)) \
		|| { echo "$$found"; exit 1; }

ruff:
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/ruff format --check $(SOURCES)

# Without the files that have no word of what these rules are about, and without the rules that
# tests are free of. What is left of them for tests is about clean-up, and generators.
with = $(shell grep --recursive --files-with-matches --include='*.py' --extended-regexp '$(1)' $(2))
CONCURRENT := async |await |trio|except:|BaseException|Cancelled
flake8:
	@echo flake8 gateway
	@.venv/bin/python -m tests.lint $(call with,$(CONCURRENT),gateway)

flake8-tests:
	@echo flake8 tests benchmarks examples
	@.venv/bin/python -m tests.lint --disable=ASYNC124 \
	  $(call with,$(CONCURRENT),$(call with,except|finally|__aexit__|yield,$(filter-out gateway,$(SOURCES))))

mypy:
	.venv/bin/mypy --strict

layers:
	.venv/bin/python -m pytest --quiet tests/test_layers.py

clean:
	rm -rf .rabbitmq-4 .venv .venv-legacy .venv-azure .venv-openapi .venv-audit .venv-docs .venv-kubernetes .venv-interop .venv-rabbitmq .node .node-rabbitmq *.egg-info build dist htmlcov .coverage* .hypothesis .*_cache
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

.venv/.run-stamp: locks/run.txt pyproject.toml | .venv/bin/pip
	.venv/bin/python $(INSTALL) --require-hashes -r locks/run.txt
	.venv/bin/python $(INSTALL) $(ITSELF)
	touch $@

.venv/.test-stamp: locks/test.txt locks/test-3.13.txt .venv/.run-stamp
	.venv/bin/python $(INSTALL) --require-hashes -r locks/test.txt -r locks/test-3.13.txt
	touch $@

# Built in this environment, as the project itself, by what run.txt has installed.
.venv/.proton-stamp: locks/proton.txt .venv/.run-stamp
	@$(call debian,$(PROTON_PACKAGES))
	.venv/bin/python $(INSTALL) --require-hashes --no-build-isolation -r locks/proton.txt
	touch $@

# Compiled once more if it was before these were there; not taken from a cache, which may have that one.
.venv/.proton-tls-stamp: .venv/.proton-stamp
	@$(call debian,$(TLS_PACKAGES))
	.venv/bin/python -c 'import proton, sys; sys.exit(not proton.SSL.present())' || .venv/bin/python $(INSTALL) \
		--require-hashes --no-build-isolation --no-deps --no-cache-dir --force-reinstall -r locks/proton.txt
	touch $@

.venv-legacy/.stamp .venv-azure/.stamp .venv-openapi/.stamp .venv-audit/.stamp .venv-docs/.stamp .venv-kubernetes/.stamp .venv-interop/.stamp .venv-rabbitmq/.stamp: .venv-%/.stamp: locks/%.txt | .venv-%/bin/pip
	.venv-$*/bin/python $(INSTALL) --require-hashes -r $<
	touch $@

.node/.stamp: $(addprefix locks/node/,package.json package-lock.json .npmrc)
.node-rabbitmq/.stamp: $(addprefix locks/node-rabbitmq/,package.json package-lock.json .npmrc)
.node/.stamp .node-rabbitmq/.stamp:
	@$(call node)
	mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --ignore-scripts --silent
	touch $@

.venv/bin/pip .venv-legacy/bin/pip .venv-azure/bin/pip .venv-openapi/bin/pip .venv-audit/bin/pip .venv-docs/bin/pip .venv-kubernetes/bin/pip .venv-interop/bin/pip .venv-rabbitmq/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) must be Python 3.11 or newer; name another one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(call debian,python3-venv); }
	$(PYTHON) -m venv $(@D:/bin=)

# RabbitMQ 4 of Debian 13, beside the one that is installed.
.rabbitmq-4/.stamp: tests/harness/unpack.sh
	sh $< trixie $(@D) rabbitmq-server erlang-base dash coreutils util-linux sed grep
	touch $@

# Shell code that installs Node.js where there is none.
node = command -v node >/dev/null && command -v npm >/dev/null || { $(call debian,nodejs npm); }

# Shell code that installs those packages of $(1) that are missing, as root or through sudo, or says what to do.
define debian
missing=$$(for package in $(1); do dpkg-query --show --showformat '$${db:Status-Status}' $$package 2>/dev/null \
	| grep -qx installed || echo $$package; done); \
if [ -n "$$missing" ]; then \
	if [ "$$(id -u)" = 0 ]; then root=env; else root=$$(command -v sudo) \
		|| { echo "Install these Debian packages first:" $$missing >&2; exit 1; }; fi; \
	echo "Installing" $$missing; \
	$$root apt-get update -qq && $$root DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing; \
fi
endef

# What only a release needs.
include $(dir $(lastword $(MAKEFILE_LIST)))release.mk
