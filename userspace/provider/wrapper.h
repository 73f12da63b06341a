/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#include <infiniband/driver.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/nupa-abi.h>
#include <stdlib.h>
