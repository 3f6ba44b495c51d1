# `make demo` and `make test` set everything up by themselves; `make help` lists the rest.

VENV ?= .venv
BIN := $(VENV)/bin
FOLDERS := export runtime flashload targets tools
# What `edgekit` itself is; the folders are inside it.
TOP := __init__.py __main__.py py.typed

# PYTHON=... chooses another interpreter for the environment.
PYTHON ?= $(shell for python in python3.11 python3 python; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		echo $$python; break; fi; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check
# Developers build with warnings as errors, and the library through which the tests see inside the core.
NATIVE_OPTIONS = --config-settings=cmake.define.EDGEKIT_WERROR=ON \
	--config-settings=cmake.define.EDGEKIT_TESTING=$(if $(filter %-dev,$@),ON,OFF)
COMMA := ,
GENERATOR := $(shell command -v ninja >/dev/null 2>&1 && echo "-G Ninja")
# A folder keeps the generator that it was made with: tests find Ninja where a shell may not.
GENERATOR_OF = $(if $(wildcard build/$(1)/CMakeCache.txt),,$(GENERATOR))
JOBS := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
NATIVE_SOURCES := CMakeLists.txt $(shell find flashload/native runtime/native -type f 2>/dev/null)

# The demo needs what runs and exports bundles; `dev` is that, with all that the tests need. Once there, it stays.
demo_EXTRAS := export
dev_EXTRAS := dev
KIND := $(if $(wildcard $(VENV)/.edgekit-native-dev),dev,demo)
# Stamps: the packages of a kind are fetched and unpacked while the native library is compiled.
BUILDER := $(VENV)/.edgekit-builder
STAMPS = $(VENV)/.edgekit-packages-$(1) $(VENV)/.edgekit-native-$(1)
SET_UP = @$(MAKE) --no-print-directory -j 2 $(call STAMPS,$(1))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-arm build-arm test-windows build-windows build-macos objects-macos test-sanitizers test-address test-thread test-python-address test-fuzz lint types contracts links wheel clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

venv:  ## the environment in .venv, with pinned dependencies and edgekit (editable)
	$(call SET_UP,dev)

demo:  ## quantize and export a small model, then watch it write while its weights stream
	$(call SET_UP,$(KIND))
	$(BIN)/edgekit demo

test: venv  ## all tests; among them ruff, mypy and the contracts of imports
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# Needs the cross compiler and the emulator (Debian: g++-aarch64-linux-gnu qemu-user).
ARM_TARGETS = edgekit_core edgekit_native_tests

test-arm: venv build-arm  ## the native core for 64-bit ARM: its own tests and whole generations, under emulation
	EDGEKIT_ARM_TESTS=build/arm/edgekit_native_tests $(BIN)/pytest tests/native/test_arm.py

build-arm:
	cmake $(call GENERATOR_OF,arm) -S . -B build/arm -DEDGEKIT_TESTING=ON -DEDGEKIT_WERROR=ON -DCMAKE_SYSTEM_NAME=Linux \
		-DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
	cmake --build build/arm --parallel $(JOBS) --target $(ARM_TARGETS)

# Needs the cross compiler and Wine (Debian: g++-mingw-w64-x86-64 wine64).
WINDOWS_TARGETS = edgekit_core edgekit_native_tests

test-windows: venv build-windows  ## the native core for Windows: its own tests and whole generations, under Wine
	EDGEKIT_WINDOWS_TESTS=build/windows/edgekit_native_tests.exe $(BIN)/pytest tests/native/test_windows.py

build-windows:
	cmake $(call GENERATOR_OF,windows) -S . -B build/windows -DEDGEKIT_TESTING=ON -DEDGEKIT_WERROR=ON -DCMAKE_SYSTEM_NAME=Windows \
		-DCMAKE_SYSTEM_PROCESSOR=x86_64 -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix
	cmake --build build/windows --parallel $(JOBS) --target $(WINDOWS_TARGETS)

# zig brings compiler, headers and libraries. The first link builds its C++ library, which takes a minute or two. A
# compiler cache would take Python for the compiler.
MACOS_TARGET := aarch64-macos.14.0
ZIG := $(CURDIR)/$(BIN)/python -m ziglang
SPACE := $(subst ,, )
MACOS = cmake $(call GENERATOR_OF,$(1)) -S . -B build/$(1) -DEDGEKIT_WERROR=ON -DCMAKE_SYSTEM_NAME=Darwin \
	-DCMAKE_SYSTEM_PROCESSOR=arm64 "-DCMAKE_CXX_COMPILER=$(subst $(SPACE),;,$(ZIG) c++)" \
	-DCMAKE_CXX_COMPILER_TARGET=$(MACOS_TARGET) -DCMAKE_CXX_COMPILER_LAUNCHER=

build-macos: venv  ## the native core for macOS on arm64, compiled and linked by zig; nothing of it can run here
	$(call MACOS,macos) -DEDGEKIT_TESTING=ON
	cmake --build build/macos --parallel $(JOBS) --target edgekit_core edgekit_native_tests
	$(ZIG) cc --target=$(MACOS_TARGET) -Iflashload/native/include tests/native/generate.c \
		build/macos/libedgekit_core.dylib -o build/macos/generate

# Warnings and what is missing show without optimization too, in two thirds of the time. CMake's own test programs are
# not linked either.
objects-macos:
	$(call MACOS,macos-objects) -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY -DCMAKE_BUILD_TYPE=Debug \
		"-DCMAKE_CXX_FLAGS_DEBUG=-g0 -fno-sanitize=undefined"
	cmake --build build/macos-objects --parallel $(JOBS) --target edgekit_objects

test-sanitizers: test-address test-thread test-python-address  ## native tests with address, undefined behaviour and thread sanitizers

# The build type Debug adds no optimization of its own to -O1: with -O3 the compiler needs several times as long.
SANITIZED = cmake $(GENERATOR) -S . -B build/$(1) -DEDGEKIT_TESTING=ON -DEDGEKIT_FUZZ=$(3) -DEDGEKIT_WERROR=ON \
	-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O1 -fno-omit-frame-pointer -fsanitize=$(2) \
	-fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS"

test-address:
	$(call SANITIZED,address,address$(COMMA)undefined,OFF)
	cmake --build build/address --parallel $(JOBS) --target edgekit_native_tests
	build/address/edgekit_native_tests

test-thread:
	$(call SANITIZED,thread,thread,OFF)
	cmake --build build/thread --parallel $(JOBS) --target edgekit_native_tests
	build/thread/edgekit_native_tests

# For GCC: an interpreter without sanitizers has to load their libraries first. Its own memory is never all freed.
test-python-address: venv test-address
	cmake --build build/address --parallel $(JOBS) --target edgekit_core edgekit_testing
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
		EDGEKIT_CORE_LIB=$(CURDIR)/build/address/libedgekit_core.so \
		EDGEKIT_TESTING_LIB=$(CURDIR)/build/address/libedgekit_testing.so \
		$(BIN)/pytest tests/*/test_native*.py

FUZZ_SECONDS ?= 600
FUZZERS := build/fuzz/edgekit_fuzz

test-fuzz: venv  ## what reads files, tokenizers and then a whole session on edited input, each FUZZ_SECONDS (600) long
	$(call SANITIZED,fuzz,address$(COMMA)undefined,ON)
	cmake --build build/fuzz --parallel $(JOBS) --target edgekit_fuzz_parsers edgekit_fuzz_text edgekit_fuzz_bundle
	$(FUZZERS)_parsers $(FUZZ_SECONDS)
	$(FUZZERS)_text $(FUZZ_SECONDS)
	$(BIN)/edgekit export tiny-gemma --format native --overwrite -o build/fuzz/bundle
	EDGEKIT_FUZZ_BUNDLE=build/fuzz/bundle $(FUZZERS)_bundle $(FUZZ_SECONDS)

lint: venv  ## ruff, mypy and the contracts of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory types contracts

# These two compile nothing and install nothing: hooks of commits run them.
types: links
	MYPYPATH=build/links $(BIN)/mypy --explicit-package-bases -p edgekit

contracts: links
	cd build/links && $(CURDIR)/$(BIN)/python $(CURDIR)/tests/support/import_contracts.py $(CURDIR)/pyproject.toml

# Type checkers do not see editable installs; these links show them the folders as edgekit.<folder>.
links:
	@mkdir -p build/links/edgekit
	@for folder in $(FOLDERS); do ln -sfn ../../../$$folder build/links/edgekit/$$folder; done
	@for file in $(TOP); do ln -sfn ../../../edgekit/$$file build/links/edgekit/$$file; done

# Linux: auditwheel finds out how old a system the wheel runs on, and names it accordingly.
wheel: venv  ## a wheel and an sdist in dist/
	$(BIN)/python -m build --no-isolation --outdir dist
	@if [ "$$(uname -s)" = Linux ]; then \
		PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/edgekit-*-linux_*.whl \
		&& rm dist/edgekit-*-linux_*.whl; fi

clean:  ## removes what was built, and the environment
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "edgekit needs Python 3.11 or newer and found none on PATH;" \
		"install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot create an environment;" \
		"some systems package the venv module separately (Debian: python3-venv)" >&2; exit 1; }

# CMake and Ninja come from the registry when the machine has none: the build backend says what it lacks.
$(BUILDER): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt scikit-build-core
	$(BIN)/python -c 'from scikit_build_core.build import get_requires_for_build_editable as needs; \
		print(*needs(), sep="\n")' > $(VENV)/build-requirements.txt
	$(PIP) install --quiet -c constraints.txt -r $(VENV)/build-requirements.txt
	@touch $@

# Compiling all of PyTorch's Python for the demo would take longer than unpacking it; tests import most of it often.
$(VENV)/.edgekit-packages-%: .ci/requirements.py $(BUILDER)
	@echo "installing the packages for $($*_EXTRAS)"
	$(BIN)/python .ci/requirements.py $($*_EXTRAS) > $(VENV)/requirements-$*.txt
	$(PIP) install --quiet $(if $(filter demo,$*),--no-compile) -c constraints.txt -r $(VENV)/requirements-$*.txt
	$(if $(filter dev,$*),@test ! -e $(VENV)/.edgekit-packages-demo || $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true)
	@touch $@

$(VENV)/.edgekit-native-%: $(NATIVE_SOURCES) $(BUILDER)
	@echo "compiling the native library"
	$(PIP) install --quiet --no-build-isolation --no-deps $(NATIVE_OPTIONS) -e .
	@touch $@
