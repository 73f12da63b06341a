// SPDX-License-Identifier: GPL-2.0
/* C inline functions and macros that nk calls, one out-of-line function each. */

#include <linux/netdevice.h>
