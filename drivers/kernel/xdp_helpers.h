/* SPDX-License-Identifier: GPL-2.0 */
/* C inline functions and macros of XDP that nk calls, one out-of-line function each; bound by bindgen. */

#ifndef _NK_XDP_HELPERS_H
#define _NK_XDP_HELPERS_H

#include <linux/bpf.h>
#include <linux/netdevice.h>
#include <net/xdp.h>

/* Macros that bindgen cannot evaluate. */
enum nk_xdp_const {
	/* Bytes behind a frame that are kept for its fragments. */
	NK_XDP_TAILROOM = SKB_DATA_ALIGN(sizeof(struct skb_shared_info)),
	/* What a network device has that nk lets a driver have XDP for. */
	NK_XDP_FEATURES = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT | NETDEV_XDP_ACT_RX_SG |
			  NETDEV_XDP_ACT_NDO_XMIT | NETDEV_XDP_ACT_NDO_XMIT_SG,
};

/* Programs */
bool nk_xdp_takes_frags(const struct bpf_prog *prog);
u32 nk_xdp_run(const struct bpf_prog *prog, struct xdp_buff *xdp);
void nk_xdp_exception(const struct net_device *dev, const struct bpf_prog *prog, u32 action);
void nk_extack_set(struct netlink_ext_ack *extack, const char *message);

/* Received frames */
int nk_xdp_rxq_reg(struct xdp_rxq_info *rxq, struct net_device *dev, u32 queue, struct page_pool *pool, u32 size);
struct page_pool *nk_page_pool_of(const struct page *page);
void nk_xdp_init(struct xdp_buff *xdp, struct xdp_rxq_info *rxq, struct page *page, u32 size, u32 headroom, u32 len);
u32 nk_xdp_frag_count(const struct xdp_buff *xdp);
bool nk_xdp_add_frag(struct xdp_buff *xdp, struct page *page, u32 offset, u32 len, u32 truesize);
u32 nk_xdp_len(const struct xdp_buff *xdp);
void nk_xdp_checksum(struct xdp_buff *xdp, u32 start, u32 offset);
u32 nk_xdp_metadata(const struct xdp_buff *xdp);
void nk_xdp_copy_head(struct sk_buff *skb, const struct xdp_buff *xdp, u32 len);
void nk_xdp_move_frags(struct sk_buff *skb, const struct xdp_buff *xdp, u32 truesize);
struct xdp_frame *nk_xdp_to_frame(struct xdp_buff *xdp);

/* Super-frames */
struct sk_buff *nk_skb_segment(struct sk_buff *skb);
struct sk_buff *nk_skb_unlink(struct sk_buff *skb);
void nk_skb_drop_list(struct sk_buff *skb);

/* Frames to send */
u32 nk_xdp_frame_len(const struct xdp_frame *frame);
u32 nk_xdp_frame_frags(const struct xdp_frame *frame);
bool nk_xdp_map_head(struct device *dev, const struct xdp_frame *frame, dma_addr_t *addr, u32 *len);
bool nk_xdp_map_frag(struct device *dev, const struct xdp_frame *frame, u32 i, dma_addr_t *addr, u32 *len);
u32 nk_xdp_frame_hash(const struct net_device *dev, const struct xdp_frame *frame, bool *l4);
bool nk_xdp_return_frame(struct xdp_frame *frame);
u32 nk_this_cpu(void);
void nk_tx_in_use(struct netdev_queue *txq);

#endif
