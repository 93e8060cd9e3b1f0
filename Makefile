# hvd: one non-recursive Makefile; build/ mirrors the tree.
#   make [all] | wheel | python-dev | test | bench | lint | fuzz | install | clean | soak
#   V=1 shows commands; SAN=address,undefined or SAN=thread builds into build-<san>/
#   PREFIX=/usr/local DESTDIR=  CC=gcc  WITH_HWLOC=auto|yes|no  STATIC=yes|no

VERSION := 0.1.0
ABI := 1
PREFIX ?= /usr/local
SAN ?=
comma := ,
B := build$(if $(SAN),-$(subst $(comma),-,$(SAN)))
CC ?= gcc
PROTOC_C ?= protoc-c
WITH_HWLOC ?= auto
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' '$(1)' '$(2)')

# ---- what the machine has
need_pkgs := libsodium libprotobuf-c libxxhash libuv popt yaml-0.1 jansson zlib
missing := $(foreach p,$(need_pkgs),$(if $(shell pkg-config --exists $(p) 2>/dev/null && echo yes),,$(p)))
ifneq ($(strip $(missing)),)
ifeq ($(filter clean help,$(MAKECMDGOALS)),)
$(error pkg-config does not find: $(missing); run scripts/deps.sh)
endif
endif
has_pkg = $(shell pkg-config --exists $(1) 2>/dev/null && echo yes)
HAVE_HWLOC := $(if $(filter-out no,$(WITH_HWLOC)),$(call has_pkg,hwloc))
ifeq ($(strip $(WITH_HWLOC))-$(HAVE_HWLOC),yes-)
$(error WITH_HWLOC=yes, but pkg-config does not find hwloc; install libhwloc-dev, or use WITH_HWLOC=auto)
endif

# ---- flags
WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
        -Wundef -Wvla -Wformat=2 $(if $(filter no,$(WERROR)),,-Werror)
OPT ?= -O2 -g
HARDEN := -fstack-protector-strong $(if $(SAN),,-D_FORTIFY_SOURCE=2)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=undefined))
CFLAGS_ALL := -std=c11 -D_GNU_SOURCE $(OPT) $(WARN) $(HARDEN) $(SANFLAGS) -fPIC -pthread \
        -fvisibility=hidden -I. -Iworker/include -I$(B)/gen \
        -DHVI_VERSION='"$(VERSION)"' -MMD -MP $(CFLAGS)
LDFLAGS_ALL := $(SANFLAGS) -pthread -Wl,-z,relro,-z,now $(LDFLAGS)
LIBS_WORKER := $(shell pkg-config --libs libsodium libprotobuf-c libxxhash 2>/dev/null) -lm -ldl
LIBS_UV := $(shell pkg-config --libs libuv jansson popt yaml-0.1 2>/dev/null) $(if $(HAVE_HWLOC),$(shell pkg-config --libs hwloc))
LIBS_ALL := $(LIBS_UV) $(LIBS_WORKER)
# The programs contain what there is as an archive beside the shared library: to find and bind
# eight of those is a third of what a start costs each. Not libsodium: its security updates
# have to reach them. STATIC=no, after `make clean`: all shared.
pc_uv := libuv
pc_yaml := yaml-0.1
pc_protobuf-c := libprotobuf-c
find_lib = $(wildcard $(shell pkg-config --variable=libdir $(or $(pc_$(1)),$(1)) 2>/dev/null)/$(2))
prefer_archive = $(firstword $(call find_lib,$(1),lib$(1)_a.a) $(call find_lib,$(1),lib$(1).a) -l$(1))
pc_xxhash := libxxhash
contained := uv jansson popt yaml protobuf-c xxhash $(if $(HAVE_HWLOC),hwloc)
# libc first: most of what is to be bound is found there
LIBS_CONTAINED := -lc $(foreach l,$(LIBS_ALL),$(if $(filter $(contained:%=-l%),$(l)),$(call \
  prefer_archive,$(l:-l%=%)),$(l))) -lm -ldl
# an archive may want what this Makefile does not know of
archives_link = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c - -x none -o /dev/null \
  -pthread $(LDFLAGS) $(if $(HAVE_HWLOC),hvdrun/topo/contained.c -Wl$(comma)-u$(comma)hwloc_topology_load) \
  -Wl,-u,uv_spawn -Wl,-u,json_dumpf $(LIBS_CONTAINED) 2>/dev/null && echo yes)
LIBS_BIN := $(if $(SAN)$(filter no,$(STATIC)),$(LIBS_ALL),$(if \
  $(archives_link),$(LIBS_CONTAINED),$(LIBS_ALL)))

# ---- sources: every .c of a room; programs' main files are named
find_c = $(shell find $(1) -name '*.c' 2>/dev/null | LC_ALL=C sort)
# exactly one of topo_hwloc.c and topo_flat.c
topo_skip := hvdrun/topo/$(if $(HAVE_HWLOC),topo_flat.c,topo_hwloc.c) hvdrun/topo/contained.c
PROTO_SRC := $(call find_c,proto)
# element loops: one of the folders x86, arm64, other, by what the compiler builds for
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
reduce_arch := $(if $(filter x86_64,$(MACHINE)),x86,$(if $(filter aarch64 arm64,$(MACHINE)),arm64,other))
reduce_skip := $(foreach d,$(filter-out $(reduce_arch),x86 arm64 other),worker/plane/reduce/$(d)/%)
# vfork of our own: the sanitizers follow only those that they know
vclone_arch := $(if $(SAN),other,$(if $(filter x86_64,$(MACHINE)),x86,other))
vclone_skip := hvdrun/job/vclone/$(if $(filter x86,$(vclone_arch)),other,x86).c
# the GPU plane's tables are held against the toolkit's headers where there are some
CUDA_HOME ?= /usr/local/cuda
HAVE_CUDA := $(and $(wildcard $(CUDA_HOME)/include/cuda.h),$(wildcard $(CUDA_HOME)/include/nccl.h))
cuda_skip := $(if $(HAVE_CUDA),,worker/plane/nccl/headers.c)
WORKER_SRC := $(filter-out $(reduce_skip) $(cuda_skip),$(call find_c,worker/core worker/board worker/plane))
COORD_SRC := $(call find_c,coordinator)
HVDRUN_SRC := $(filter-out $(topo_skip) $(vclone_skip),$(call find_c,hvdrun))
MAIN_SRC := coordinator/main.c hvdrun/main.c hvdrun/agent/main.c
LIB_SRC := $(PROTO_SRC) $(WORKER_SRC)
ALL_SRC := $(filter-out $(MAIN_SRC),$(PROTO_SRC) $(WORKER_SRC) $(COORD_SRC) $(HVDRUN_SRC))
EXAMPLE_SRC := $(wildcard worker/examples/*.c)
obj = $(patsubst %.c,$(B)/%.o,$(1))
GEN_O := $(B)/gen/proto/msg/hvd.pb-c.o

BINS := $(addprefix $(B)/bin/,hvdrun hvd-agent hvd-coordinator)
SO := $(B)/lib/libhvd.so
EXAMPLES := $(patsubst worker/examples/%.c,$(B)/examples/%,$(EXAMPLE_SRC))

# the bindings' op libraries: plain C over hvd.h, a framework's symbols are found at run time
TF_SO := $(B)/lib/libhvd_tf.so
BIND_SO := $(TF_SO)

all: $(SO) $(BIND_SO) $(B)/lib/pkgconfig/hvd.pc $(BINS) $(EXAMPLES)

# ---- generated: protobuf
$(B)/gen/proto/msg/hvd.pb-c.c: proto/msg/hvd.proto
	$(call say,PROTOC,$<)
	$(Q)mkdir -p $(B)/gen && $(PROTOC_C) --c_out=$(B)/gen $<
$(B)/gen/proto/msg/hvd.pb-c.h: $(B)/gen/proto/msg/hvd.pb-c.c ;
$(GEN_O): $(B)/gen/proto/msg/hvd.pb-c.c
	$(call say,CC,$<)
	$(Q)$(CC) $(filter-out $(WARN),$(CFLAGS_ALL)) -Wno-conversion -c $< -o $@

$(B)/%.o: %.c | $(B)/gen/proto/msg/hvd.pb-c.h
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(CFLAGS_ALL) $(CFLAGS_FILE) -c $< -o $@

# hot loops: let the compiler vectorize what is written plainly; no contraction, or the
# instruction sets would differ in the last bit
HOT := -O3 -ffp-contract=off
$(B)/worker/plane/reduce/%.o $(B)/worker/plane/sched/%.o: CFLAGS_FILE := $(HOT)
$(B)/worker/plane/reduce/x86/avx2.o: CFLAGS_FILE := $(HOT) -mavx2 -mf16c
$(B)/worker/plane/reduce/x86/avx512.o: CFLAGS_FILE := $(HOT) -mavx512f -mavx512bw \
  -mavx512vl -mavx512dq -mf16c -mprefer-vector-width=512

$(B)/worker/plane/nccl/headers.o: CFLAGS_FILE := -isystem $(CUDA_HOME)/include
$(B)/worker/plane/nccl/device.o: worker/plane/nccl/kernels/pack.ptx

# ---- libraries and programs
$(SO): $(call obj,$(LIB_SRC)) $(GEN_O) worker/libhvd.map
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) -shared $(LDFLAGS_ALL) -Wl,-soname,libhvd.so.$(ABI) \
	  -Wl,--version-script=worker/libhvd.map $(if $(SAN),,-Wl,--no-undefined) \
	  -o $@.$(VERSION) $(filter %.o,$^) $(LIBS_WORKER)
	$(Q)ln -sf libhvd.so.$(VERSION) $(@D)/libhvd.so.$(ABI) && ln -sf libhvd.so.$(ABI) $@

$(TF_SO): $(call obj,$(wildcard worker/bind/tensorflow/*.c)) $(SO)
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(LDFLAGS_ALL) -Wl,-soname,libhvd_tf.so -Wl,-rpath,'$$ORIGIN' \
	  -o $@ $(filter %.o,$^) -L$(B)/lib -lhvd -ldl

$(B)/lib/libhvi.a: $(call obj,$(ALL_SRC)) $(GEN_O)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

$(B)/bin/hvdrun $(B)/bin/hvd-agent: $(if $(filter %/libhwloc.a,$(LIBS_BIN)),$(B)/hvdrun/topo/contained.o)
$(B)/bin/hvdrun: $(B)/hvdrun/main.o $(B)/lib/libhvi.a
$(B)/bin/hvd-agent: $(B)/hvdrun/agent/main.o $(B)/lib/libhvi.a
$(B)/bin/hvd-coordinator: $(B)/coordinator/main.o $(B)/lib/libhvi.a
$(BINS):
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) -pie $(LDFLAGS_ALL) -o $@ $(filter %.o %.a,$^) -Wl,--as-needed $(LIBS_BIN)

$(B)/lib/pkgconfig/hvd.pc: worker/hvd.pc.in Makefile
	$(Q)mkdir -p $(@D) && sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

# an example may have a folder of further sources: name them and its libraries here
$(B)/examples/train_mnist: $(wildcard worker/examples/mnist/*.[ch])
$(B)/examples/train_mnist: EXAMPLE_LIBS := -lz -ldl
$(B)/examples/%: worker/examples/%.c $(SO)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out -fvisibility=hidden -MMD -MP,$(CFLAGS_ALL)) -O3 $(filter %.c,$^) -o $@ \
	  $(LDFLAGS_ALL) -L$(B)/lib -lhvd $(EXAMPLE_LIBS) -lm -Wl,-rpath,'$$ORIGIN/../lib'
$(EXAMPLES): worker/include/hvd/hvd.h

# ---- tests
UNIT_SRC := $(shell find tests/unit -name 'test_*.c' | LC_ALL=C sort)
UNIT_SUPPORT := $(wildcard tests/unit/support/*.c)
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/tests/unit/%,$(UNIT_SRC))
# Criterion cannot run under TSan: tests/unit/support/plain.h stands in for it
TESTFLAGS := -Itests/unit/support -DHVD_TEST_SRC='"$(CURDIR)"' $(if $(findstring thread,$(SAN)),-DHVI_PLAIN_TESTS) -Wno-conversion -Wno-missing-prototypes -Wno-unused-parameter
TESTLIBS := $(if $(findstring thread,$(SAN)),,-lcriterion)
$(B)/tests/unit/%.o: CFLAGS_FILE := $(TESTFLAGS)
$(B)/tests/unit/%: $(B)/tests/unit/%.o $(call obj,$(UNIT_SUPPORT)) $(B)/lib/libhvi.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o %.a,$^) $(TESTLIBS) $(LIBS_ALL)
unit: $(UNIT_BIN) fakes

# a GPU driver and an NCCL without a GPU, found by the same search as the real ones; old/
# has no newer entries
FAKE := $(B)/tests/fake
FAKE_OBJ := $(call obj,$(filter worker/plane/reduce/% proto/base/%,$(LIB_SRC)))
FAKE_CC = $(CC) $(filter-out $(WARN),$(CFLAGS_ALL)) -Wall -Wextra -shared $(if $(SAN),,-Wl,-z,defs)
$(FAKE)/libcuda.so.1 $(FAKE)/old/libcuda.so.1: tests/fake/cuda.c
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(FAKE_CC) $(if $(findstring /old/,$@),-DFAKE_OLD) -Wl,-soname,libcuda.so.1 -o $@ $< -MF $@.d
$(FAKE)/libnccl.so.2 $(FAKE)/old/libnccl.so.2: tests/fake/nccl.c $(FAKE_OBJ) $(FAKE)/libcuda.so.1
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(FAKE_CC) $(if $(findstring /old/,$@),-DFAKE_OLD) -Wl,-soname,libnccl.so.2 -o $@ $< $(FAKE_OBJ) \
	  -MF $@.d -L$(FAKE) -l:libcuda.so.1 -lm
fakes: $(addprefix $(FAKE)/,libcuda.so.1 libnccl.so.2 old/libcuda.so.1 old/libnccl.so.2)
test: all
	scripts/test.sh

# ---- fuzzing: clang's libFuzzer with ASan and UBSan; see tests/fuzz/README.md
# A target links proto and what FUZZ_USES_<target> names of its room: a file that does not
# compile stops only the targets that use it. Objects lie in build-fuzz/obj. The same
# sources also make $(B)/tests/fuzz/<target> with $(CC), which replays files.
FUZZ_CC ?= clang
F := $(B)-fuzz
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_NAMES := $(patsubst tests/fuzz/%.c,%,$(FUZZ_SRC))
FUZZ_BIN := $(addprefix $(F)/,$(FUZZ_NAMES))
FUZZ_REPLAY := $(addprefix $(B)/tests/fuzz/,$(FUZZ_NAMES))
FUZZ_SECONDS ?= 60
# FUZZ_USES_fuzz_<entry> := files of its room
FUZZ_USES_fuzz_core := $(call find_c,coordinator/core)
FUZZ_USES_fuzz_hosts := $(addprefix hvdrun/hosts/,hosts.c hostfile.c hostlist.c alloc.c allocslurm.c allocflux.c) \
		$(addprefix hvdrun/cli/,optnear.c opttab.c textfile.c)
FUZZ_FLAGS := -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer-no-link,address,undefined \
        -fno-sanitize-recover=undefined -fno-omit-frame-pointer -I. -Iworker/include -I$(B)/gen \
        -DHVI_VERSION='"$(VERSION)"' -DHVI_LIBFUZZER -w -pthread -MMD -MP
fuzz_obj = $(patsubst %.c,$(F)/obj/%.o,$(1))
define fuzz_rule
$(F)/$(1): $(call fuzz_obj,tests/fuzz/$(1).c $(PROTO_SRC) $(FUZZ_USES_$(1))) $(F)/obj/hvd.pb-c.o
$(B)/tests/fuzz/$(1): $(call obj,tests/fuzz/$(1).c $(PROTO_SRC) $(FUZZ_USES_$(1))) $(GEN_O)
endef
$(foreach t,$(FUZZ_NAMES) seeds,$(eval $(call fuzz_rule,$(t))))
$(FUZZ_BIN):
	$(call say,FUZZ,$@)
	$(Q)mkdir -p $(@D) && $(FUZZ_CC) -fsanitize=fuzzer,address,undefined -pthread -o $@ $(filter %.o,$^) $(LIBS_ALL)
$(FUZZ_REPLAY) $(B)/tests/fuzz/seeds:
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o %.a,$^) -Wl,--as-needed $(LIBS_ALL)
$(F)/obj/%.o: %.c | $(B)/gen/proto/msg/hvd.pb-c.h
	$(call say,FUZZCC,$<)
	$(Q)mkdir -p $(@D) && $(FUZZ_CC) $(FUZZ_FLAGS) -c $< -o $@
$(F)/obj/hvd.pb-c.o: $(B)/gen/proto/msg/hvd.pb-c.c
	$(call say,FUZZCC,$<)
	$(Q)mkdir -p $(@D) && $(FUZZ_CC) $(FUZZ_FLAGS) -c $< -o $@
fuzz-bin: $(FUZZ_BIN) $(B)/tests/fuzz/seeds
fuzz-replay: $(FUZZ_REPLAY) $(B)/tests/fuzz/seeds
fuzz: fuzz-bin
	B=$(B) scripts/fuzz.sh $(FUZZ_SECONDS)
-include $(shell find $(F) -name '*.d' 2>/dev/null)

# ---- what a step costs the coordinator: simulated, up to 16,384 ranks
BENCH_COORD := $(B)/tests/bench/bench_coordinator
BENCH_COORD_SRC := tests/bench/bench_coordinator.c $(call find_c,coordinator/core) $(PROTO_SRC)
$(BENCH_COORD): $(BENCH_COORD_SRC) tests/bench/manyranks.h tests/bench/bench.h $(GEN_O)
	$(call say,CC,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -include tests/bench/manyranks.h \
	  $(filter %.c %.o,$^) -o $@ $(LDFLAGS_ALL) $(LIBS_WORKER)
bench-coordinator: $(BENCH_COORD)
	$(BENCH_COORD)

# ---- the rest
bench: all
	scripts/bench.sh
lint: $(B)/gen/proto/msg/hvd.pb-c.h
	scripts/lint.sh
soak: all
	scripts/soak.sh

# ---- the Python package
# The wheel carries libhvd, the programs and the libraries they need but for the C library;
# rpaths lead from one to the other. Nothing is compiled for a Python or a framework.
PYTHON ?= python3
W := $(B)/wheel
WHEEL_LINK := $(LDFLAGS_ALL) -Wl,--disable-new-dtags -Wl,--as-needed
wheel: all
	$(Q)rm -rf $(W) && mkdir -p $(W)/lib $(W)/bin
	$(Q)$(CC) -shared $(WHEEL_LINK) -Wl,-soname,libhvd.so.$(ABI) -Wl,-rpath,'$$ORIGIN' \
	  -Wl,--version-script=worker/libhvd.map -o $(W)/lib/libhvd.so.$(ABI) $(call obj,$(LIB_SRC)) $(GEN_O) $(LIBS_WORKER)
	$(Q)cp $(BIND_SO) $(W)/lib/
	$(Q)for main in hvdrun/main:hvdrun hvdrun/agent/main:hvd-agent coordinator/main:hvd-coordinator; do \
	  $(CC) -pie $(WHEEL_LINK) -Wl,-rpath,'$$ORIGIN/../lib' -o $(W)/bin/$${main#*:} \
	    $(B)/$${main%:*}.o $(B)/lib/libhvi.a $(LIBS_ALL) || exit 1; done
	$(Q)for f in $$(ldd $(W)/bin/* $(W)/lib/* | awk '$$2 == "=>" && $$3 ~ /^\// { print $$3 }' | sort -u | \
	  grep -v -E '/(libhvd|libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux[^/]*)\.so'); do \
	  cp -L $$f $(W)/lib/ && worker/python/licenses.sh $(W)/licenses $$f || exit 1; done
	$(Q)cp LICENSE $(W)/licenses/
	$(Q)strip -S $(W)/bin/* $(W)/lib/*
	$(Q)$(PYTHON) worker/python/make_wheel.py $(VERSION) $(W) $(B)/dist
# use the package from the tree: PYTHONPATH=worker/python
python-dev: all
	$(Q)rm -rf worker/python/horovod/_dist && mkdir -p worker/python/horovod/_dist/lib worker/python/horovod/_dist/bin
	$(Q)ln -s $(abspath $(SO)) worker/python/horovod/_dist/lib/libhvd.so.$(ABI)
	$(Q)for f in $(abspath $(BIND_SO)); do ln -s $$f worker/python/horovod/_dist/lib/; done
	$(Q)for f in $(abspath $(BINS)); do ln -s $$f worker/python/horovod/_dist/bin/; done

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/hvd \
	  $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -m755 $(BINS) $(DESTDIR)$(PREFIX)/bin
	@cd $(DESTDIR)$(PREFIX) && if [ -e bin/horovodrun ] && [ ! bin/horovodrun -ef bin/hvdrun ]; then \
	  echo "$(PREFIX)/bin/horovodrun is another program's and stays"; \
	else ln -sfv hvdrun bin/horovodrun && ln -sfv hvdrun.1 share/man/man1/horovodrun.1; fi
	install -m755 $(SO).$(VERSION) $(BIND_SO) $(DESTDIR)$(PREFIX)/lib
	ln -sf libhvd.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libhvd.so.$(ABI)
	ln -sf libhvd.so.$(ABI) $(DESTDIR)$(PREFIX)/lib/libhvd.so
	install -m644 worker/include/hvd/hvd.h $(DESTDIR)$(PREFIX)/include/hvd
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' worker/hvd.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/hvd.pc
	$(B)/bin/hvdrun --generate-man > $(DESTDIR)$(PREFIX)/share/man/man1/hvdrun.1
	$(B)/bin/hvdrun --generate-completion > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/hvdrun

clean:
	rm -rf build build-*
help:
	@sed -n 's/^#   //p' Makefile

.PHONY: all wheel python-dev unit fakes test bench bench-coordinator lint fuzz fuzz-bin fuzz-replay soak install clean help
.DELETE_ON_ERROR:
.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
