// SPDX-License-Identifier: GPL-2.0
/* The tracepoints of trace.h, for Rust to call. */

#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "trace.h"
