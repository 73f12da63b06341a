# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What a person does with this tree. Kbuild, beside this file, is what the kernel's build reads.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

help: ## say what there is
	@echo 'make demo      two nodes talk through the fabric; one table of results (KEEP=1 leaves them up)'
	@echo 'make test      tests on the host, and on nodes: with MODE those of that mode, without it those of pcie and'
	@echo '               a part of cxl and ivshmem; test-long has everything'
	@echo '               (KERNEL=debug: on a kernel with KASAN, lockdep and more)'
	@echo 'make bench     against virtio-net, soft RoCE and memcpy (BENCH=ip|engine|rdma|beside|pool-host|all)'
	@echo 'MODE=pcie      nodes are joined by the emulated fabric switch; they share memory with'
	@echo '               MODE=cxl (a CXL memory device) and MODE=ivshmem (any KVM host has that)'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Set-up is made by itself where it is missing, in $${NUPA_CACHE:-~/.cache/nupa}.'

setup: ## make the build root, the kernel tree and the guest
	@scripts/setup

providers: userspace setup-packages
	@scripts/build providers

setup-debian: setup # the Debian that packages are tried on
	@scripts/setup --debian

selftests: setup # the kernel's own tests of network drivers
	@scripts/setup --selftests
	@scripts/build selftests

setup-clients: setup # the image of programs for test-clients
	@scripts/setup --clients

modules: setup ## build nupa_fabric.ko, nupa_net.ko and nupa_rdma.ko into build/modules
	@scripts/build modules

userspace: setup ## build the fabric switch and the tools into build/bin
	@scripts/build userspace

setup-packages: setup
	@scripts/setup --packages

deb: modules providers ## make Debian packages, into build/deb (Documentation/install.md)
	@scripts/deb

# Before the set-up and the build, which take minutes.
.room-for-demo:
	@vms/room 2

rpm: providers # RPM packages for Fedora, into build/rpm (Documentation/install.md)
	@scripts/rpm

demo: .room-for-demo modules userspace ## boot two nodes, show what works and how fast
	@scripts/in-root scripts/demo

test-host: setup ## tests that need no node
	@scripts/host-tests

test-nodes: modules userspace ## tests on two to four nodes (TESTS='-k name' picks some)
	@scripts/in-root tests/run $(TESTS)

test: modules userspace ## the tests of the host and of the nodes
	@scripts/host-tests; host=$$?; \
	scripts/in-root tests/run --host-log build/test-logs/host.log $(TESTS) && exit $$host

test-long: modules userspace setup-debian providers selftests ## all tests, those that take long included, on nodes in all modes
	@NUPA_TEST_LONG=1 scripts/host-tests; host=$$?; \
	scripts/in-root tests/run --long --host-log build/test-logs/host.log $(TESTS) && test $$host = 0 && \
	MODE=cxl NUPA_PROCESS_RINGS=mixed scripts/in-root tests/run -k 'test_rdma or test_process_rings'

test-selftests: modules userspace selftests ## the kernel's own tests of network drivers, on nodes (MODE=pcie)
	@MODE=$${MODE:-pcie} scripts/in-root tests/run --long --lanes 1 -k test_selftests

test-clients: modules userspace setup-clients ## programs that people run, unmodified (Documentation/clients.md; CLIENTS='ucx redis' picks some)
	@scripts/in-root scripts/clients $(CLIENTS)

soak: modules userspace ## loads and faults at random, compared (MINUTES=10 MODE=pcie SEED=n)
	@scripts/in-root scripts/soak

fuzz: setup ## fuzz led by coverage (HOURS=1 in equal parts; TARGET=wqe for one)
	@scripts/fuzz "$${TARGET:-all}" "$${HOURS:-1}h"

# What others get, and what is measured, is never built for tests.
deb rpm bundle bench demo: export NUPA_PROFILE := release

setup-ucx: setup # UCX's measurements, for the one of pools
	@scripts/setup --ucx

bench: modules userspace $(if $(filter pool-host,$(BENCH)),setup-ucx) ## measure; results in build/bench
	@scripts/in-root scripts/bench

bundle: modules userspace ## pack two nodes with all that they need, for any x86-64 Linux
	@scripts/bundle

lint: setup ## formatting, clippy, rustdoc and shellcheck, warnings fatal
	@scripts/lint

fmt: setup ## format all Rust sources
	@scripts/lint --fix-format

.room-for-nodes:
	@vms/up --check

vm-up: .room-for-nodes modules userspace ## start nodes, their network up, and leave them running (NODES=2)
	@vms/up

vm-down: ## stop all nodes, the switch and the pool
	@vms/stop all

vm-status: ## say which nodes run and how to log in
	@vms/status

prune: ## remove from the cache what the pins of this checkout do not use; others may use it
	@scripts/setup --prune

clean: vm-down ## remove build/ (not the cache)
	rm -rf build

.PHONY: help setup setup-packages setup-debian setup-clients setup-ucx selftests modules providers userspace deb rpm demo test-host test-nodes test test-long test-selftests \
	test-clients fuzz soak bench bundle lint fmt vm-up vm-down vm-status prune clean .room-for-demo .room-for-nodes
