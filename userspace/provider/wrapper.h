/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#include <infiniband/driver.h>
#include <stdlib.h>
