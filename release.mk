# What only a release needs, and what takes other registries, root or another revision. Included by Makefile.

CONTAINER_PACKAGES := buildah crun iproute2 mmdebstrap util-linux
DEBIAN_PACKAGES := mmdebstrap util-linux
POWERCUT_PACKAGES := e2fsprogs mount strace
COMPILE := .venv/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links

.PHONY: interop powercut upgrade-check container-check debian-check lock release dist bundles image sign sbom audit

# The names of what a release has, and the date of all files in it: the same commit makes the same bytes.
NAME := pairgate-mq
VERSION = $(shell sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' gateway/__init__.py)
DATE = $(shell git log -1 --format=%ct)
# Shell code that packs the folder $(3) of $(2) as dist/$(1); with $(4) as the folder's name in it.
pack = tar --create --sort=name --mtime=@$(DATE) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=gnu \
	--exclude=.env --exclude=compose.override.yaml --use-compress-program='gzip --no-name --best' --file dist/$(1) \
	--directory $(2) --transform 's,^$(3),$(4),' $(3)

# Other people's clients and their tests, unmodified, against a gateway, family by family
# (tests/interop/families); some twenty minutes. make interop SUITES="management sync async"
interop: .venv/.test-stamp .venv-interop/.stamp .venv-rabbitmq/.stamp .node/.stamp .node-rabbitmq/.stamp .rabbitmq-4/.stamp
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
	$(COMPILE) --output-file locks/rabbitmq.txt locks/rabbitmq.in
	@$(call node)
	cd locks/node && npm install --package-lock-only --ignore-scripts

# All files of a release in dist/: docs/how-to/secure/publish-a-release.md. make release URL=https://... KEY=release.pem
release:
	@test -n '$(KEY)' || echo "without KEY=release.pem it isn't signed"
	$(MAKE) --no-print-directory dist
	$(MAKE) --no-print-directory sbom bundles image
	$(MAKE) --no-print-directory sign
	@ls -l dist

# The chart, the Compose file with what it needs, and the documentation, each as an archive in dist/.
SITE = .venv/bin/python -m tests.site
bundles: .venv/.test-stamp .venv-docs/.stamp
	$(SITE)
	mkdir -p dist
	$(call pack,$(NAME)-$(VERSION).tgz,conf/helm,pairgate,$(NAME))
	$(call pack,$(NAME)-$(VERSION)-compose.tar.gz,conf,compose,$(NAME)-compose)
	$(call pack,$(NAME)-$(VERSION)-site.tar.gz,build/docs,site,$(NAME)-site)

# The image of Containerfile as an OCI archive in dist/, run as `make container-check` runs it. Not the same bytes again: Debian's
# packages are those of the day. Takes root and buildah; without them a release goes on, and has no image.
image:
	@if [ "$$(id -u)" = 0 ] && command -v buildah mmdebstrap >/dev/null; then \
	  mkdir -p dist && .venv/bin/python -m tests.deploy.container_check run dist/$(NAME)-$(VERSION)-image.oci.tar; \
	else echo "no image: it takes root, buildah and mmdebstrap (make container-check installs them)" >&2; fi

# Wheel and source archive in dist/. The same commit makes the same bytes. A release names its address: make dist URL=https://...
dist: .venv/.test-stamp
	rm -rf dist
	umask 022; PAIRGATE_URL='$(URL)' SOURCE_DATE_EPOCH=$(DATE) .venv/bin/python -m build --no-isolation

# Writes the sums of all files in dist/, and signs them with the releaser's private key (Ed25519, PEM): make sign KEY=release.pem
sign:
	cd dist && sums=$$(sha256sum $$(ls | grep -v -e '\.pem$$' -e '^SHA256SUMS')) && printf '%s\n' "$$sums" > SHA256SUMS
	$(if $(KEY),openssl pkeyutl -sign -rawin -inkey $(KEY) -in dist/SHA256SUMS -out dist/SHA256SUMS.sig)

# The packages that Pairgate runs with, their licences and what needs which, as CycloneDX: dist/pairgate-mq-VERSION.cdx.json.
sbom: .venv-audit/.stamp
	$(PYTHON) -m venv --clear build/sbom
	build/sbom/bin/python $(INSTALL) --require-hashes -r locks/run.txt
	build/sbom/bin/python -m pip uninstall --quiet --yes setuptools pip
	mkdir -p dist
	.venv-audit/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --output-format JSON --output-file dist/$(NAME)-$(VERSION).cdx.json build/sbom/bin/python

# Known vulnerabilities of the packages that Pairgate, its extras and its tests run with, asked over the network. Only test.txt has
# the extras. A package that can't be asked about is a failure, and so is a service that doesn't answer.
audit: .venv-audit/.stamp
	@.venv-audit/bin/pip-audit --strict --disable-pip --require-hashes -r locks/run.txt -r locks/test.txt || { \
	  echo "Not clean: if pip-audit lists no vulnerability above, it couldn't ask, and nothing is known." >&2; exit 1; }
