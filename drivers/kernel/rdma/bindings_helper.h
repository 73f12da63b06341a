/* SPDX-License-Identifier: GPL-2.0 */
/* Headers whose contents nk_rdma binds; bindgen_parameters says which parts of them. */

#include <linux/netdevice.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>

#include "helpers.h"
#include "revocable.h"
