# What only a release needs, and what takes other registries, root or another revision. Included by Makefile.

CONTAINER_PACKAGES := buildah crun mmdebstrap util-linux
DEBIAN_PACKAGES := mmdebstrap util-linux
POWERCUT_PACKAGES := e2fsprogs mount strace
COMPILE := .venv/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links

.PHONY: interop powercut upgrade-check container-check debian-check lock dist sign sbom audit

# Other people's clients and their tests, unmodified, against a gateway, family by family
# (tests/interop/families); some twenty minutes. make interop SUITES="management sync async"
interop: .venv/.test-stamp .venv-interop/.stamp
	.venv/bin/python -m tests.interop $(SUITES)

# As root: it mounts a file system and cuts its power.
powercut: .venv/.test-stamp
	@$(call debian,$(POWERCUT_PACKAGES))
	.venv/bin/python -m pytest -m powercut

# Gateways and syphons of an earlier revision are replaced by this one, under load: make upgrade-check FROM=v0.1.0
upgrade-check: .venv/.test-stamp
	rm -rf build/earlier
	mkdir -p build/earlier
	git archive $(FROM) gateway | tar --extract --directory build/earlier
	PAIRGATE_EARLIER=$(CURDIR)/build/earlier .venv/bin/python -m pytest tests/e2e/test_rolling_upgrade.py

# As root: builds the image of Containerfile without a registry, and runs it; some minutes. With the extras: LOCK=extras
container-check: .venv/.run-stamp
	@$(call debian,$(CONTAINER_PACKAGES))
	.venv/bin/python -m tests.deploy.container_check $(LOCK)

# As root: `make run` and `make test` in a plain Debian, with a test for each thing that they install; some
# twenty minutes. All tests: make debian-check WHOLE=1; some: make debian-check TESTS="tests/e2e/test_serve.py"
debian-check: .venv/.run-stamp
	@$(call debian,$(DEBIAN_PACKAGES))
	.venv/bin/python -m tests.deploy.debian_check $(if $(WHOLE),--whole) $(TESTS)

# Keeps the versions that still fit. To renew one, delete its entry in locks/ first.
lock: .venv/.test-stamp
	$(COMPILE) --output-file locks/run.txt pyproject.toml locks/build.in
	$(COMPILE) --all-extras --output-file locks/test.txt pyproject.toml locks/build.in locks/test.in
	$(COMPILE) --all-extras --constraint locks/test.txt --output-file locks/extras.txt pyproject.toml locks/build.in
	$(COMPILE) --output-file locks/proton.txt locks/proton.in
	$(COMPILE) --output-file locks/legacy.txt locks/legacy.in
	$(COMPILE) --output-file locks/azure.txt locks/azure.in
	$(COMPILE) --output-file locks/openapi.txt locks/openapi.in
	$(COMPILE) --output-file locks/audit.txt locks/audit.in
	$(COMPILE) --output-file locks/docs.txt locks/docs.in
	$(COMPILE) --output-file locks/kubernetes.txt locks/kubernetes.in
	$(COMPILE) --output-file locks/interop.txt locks/interop.in
	@$(call node)
	cd locks/node && npm install --package-lock-only --ignore-scripts

# Wheel and source archive in dist/. The same commit makes the same bytes. A release names its address: make dist URL=https://...
dist: .venv/.test-stamp
	rm -rf dist
	PAIRGATE_URL='$(URL)' SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv/bin/python -m build --no-isolation

# Signs the sums of all files in dist/ with the releaser's private key (Ed25519, PEM): make sign KEY=release.pem
sign:
	cd dist && sha256sum *.whl *.tar.gz $$(ls *.cdx.json 2>/dev/null) > SHA256SUMS
	openssl pkeyutl -sign -rawin -inkey $(KEY) -in dist/SHA256SUMS -out dist/SHA256SUMS.sig

# The packages that Pairgate runs with, their licences and what needs which, as CycloneDX: dist/pairgate.cdx.json.
sbom: .venv-audit/.stamp
	$(PYTHON) -m venv --clear build/sbom
	build/sbom/bin/python $(INSTALL) --require-hashes -r locks/run.txt
	build/sbom/bin/python -m pip uninstall --quiet --yes setuptools pip
	mkdir -p dist
	.venv-audit/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --output-format JSON --output-file dist/pairgate.cdx.json build/sbom/bin/python

# Known vulnerabilities of the packages that Pairgate, its extras and its tests run with, asked over the network. Only test.txt has
# the extras. A package that can't be asked about is a failure, and so is a service that doesn't answer.
audit: .venv-audit/.stamp
	@.venv-audit/bin/pip-audit --strict --disable-pip --require-hashes -r locks/run.txt -r locks/test.txt || { \
	  echo "Not clean: if pip-audit lists no vulnerability above, it couldn't ask, and nothing is known." >&2; exit 1; }
