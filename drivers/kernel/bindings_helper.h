/* SPDX-License-Identifier: GPL-2.0 */
/* Headers whose contents nk binds; bindgen_parameters says which parts of them. */

#include <linux/bpf.h>
#include <linux/dma-mapping.h>
#include <linux/dynamic_queue_limits.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_vlan.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kthread.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/random.h>
#include <linux/skbuff.h>
#include <net/devlink.h>
#include <net/genetlink.h>
#include <net/gro.h>
#include <net/netdev_queues.h>
#include <net/page_pool/helpers.h>
#include <net/xdp.h>

#include <../drivers/dax/bus.h>
#include <../drivers/dax/dax-private.h>

#include "device_helpers.h"
#include "dma_helpers.h"
#include "helpers.h"
#include "memory_device_helpers.h"
#include "memory_helpers.h"
#include "trace.h"
#include "xdp_helpers.h"
