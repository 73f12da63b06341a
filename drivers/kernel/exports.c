// SPDX-License-Identifier: GPL-2.0
/* Exports of nupa_fabric.ko to its children; the list is generated, see Kbuild. */

#include <linux/export.h>

/* As in rust/exports.c of the kernel: the type does not matter, only the symbol's address does. */
#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"
