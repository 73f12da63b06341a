// SPDX-License-Identifier: GPL-2.0
/* See xdp_helpers.h. */

#include <linux/bpf_trace.h>
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <linux/if_vlan.h>
#include <net/checksum.h>
#include <net/flow_dissector.h>
#include <net/gso.h>
#include <net/page_pool/helpers.h>

#include "xdp_helpers.h"

/* Programs */

bool nk_xdp_takes_frags(const struct bpf_prog *prog)
{
	return prog->aux->xdp_has_frags;
}

u32 nk_xdp_run(const struct bpf_prog *prog, struct xdp_buff *xdp)
{
	return bpf_prog_run_xdp(prog, xdp);
}

void nk_xdp_exception(const struct net_device *dev, const struct bpf_prog *prog, u32 action)
{
	trace_xdp_exception(dev, prog, action);
}

/* The message is not copied. */
void nk_extack_set(struct netlink_ext_ack *extack, const char *message)
{
	if (extack)
		extack->_msg = message;
}

/* Received frames */

int nk_xdp_rxq_reg(struct xdp_rxq_info *rxq, struct net_device *dev, u32 queue, struct page_pool *pool, u32 size)
{
	int ret = __xdp_rxq_info_reg(rxq, dev, queue, 0, size);

	if (ret)
		return ret;
	ret = xdp_rxq_info_reg_mem_model(rxq, MEM_TYPE_PAGE_POOL, pool);
	if (ret)
		xdp_rxq_info_unreg(rxq);
	return ret;
}

struct page_pool *nk_page_pool_of(const struct page *page)
{
	return pp_page_to_nmdesc(page)->pp;
}

void nk_xdp_init(struct xdp_buff *xdp, struct xdp_rxq_info *rxq, struct page *page, u32 size, u32 headroom, u32 len)
{
	memset(xdp, 0, sizeof(*xdp));
	xdp_init_buff(xdp, size, rxq);
	xdp_prepare_buff(xdp, page_address(page), headroom, len, true);
}

u32 nk_xdp_frag_count(const struct xdp_buff *xdp)
{
	return xdp_buff_has_frags(xdp) ? xdp_get_shared_info_from_buff(xdp)->nr_frags : 0;
}

bool nk_xdp_add_frag(struct xdp_buff *xdp, struct page *page, u32 offset, u32 len, u32 truesize)
{
	return xdp_buff_add_frag(xdp, page_to_netmem(page), offset, len, truesize);
}

u32 nk_xdp_len(const struct xdp_buff *xdp)
{
	return xdp_get_buff_len(xdp);
}

/* As skb_checksum_help(): what the sender has put into the field is part of the sum. */
void nk_xdp_checksum(struct xdp_buff *xdp, u32 start, u32 offset)
{
	u32 done = xdp->data_end - xdp->data - start, i;
	__wsum sum = csum_partial(xdp->data + start, done, 0);

	for (i = 0; i < nk_xdp_frag_count(xdp); i++) {
		const skb_frag_t *frag = &xdp_get_shared_info_from_buff(xdp)->frags[i];
		u32 len = skb_frag_size(frag);

		sum = csum_block_add(sum, csum_partial(skb_frag_address(frag), len, 0), done);
		done += len;
	}
	put_unaligned(csum_fold(sum) ?: CSUM_MANGLED_0, (__sum16 *)(xdp->data + start + offset));
}

u32 nk_xdp_metadata(const struct xdp_buff *xdp)
{
	return xdp_data_meta_unsupported(xdp) ? 0 : xdp->data - xdp->data_meta;
}

/* The program's metadata and the first len bytes of the linear part, to a packet that has room for both. */
void nk_xdp_copy_head(struct sk_buff *skb, const struct xdp_buff *xdp, u32 len)
{
	u32 metadata = nk_xdp_metadata(xdp);

	skb_put_data(skb, xdp->data - metadata, metadata + len);
	__skb_pull(skb, metadata);
	if (metadata)
		skb_metadata_set(skb, metadata);
}

/* To a packet that has room for them. */
void nk_xdp_move_frags(struct sk_buff *skb, const struct xdp_buff *xdp, u32 truesize)
{
	u32 i;

	for (i = 0; i < nk_xdp_frag_count(xdp); i++) {
		const skb_frag_t *frag = &xdp_get_shared_info_from_buff(xdp)->frags[i];

		skb_add_rx_frag_netmem(skb, skb_shinfo(skb)->nr_frags, skb_frag_netmem(frag), skb_frag_off(frag),
				       skb_frag_size(frag), truesize);
	}
	skb_mark_for_recycle(skb);
}

struct xdp_frame *nk_xdp_to_frame(struct xdp_buff *xdp)
{
	return xdp_convert_buff_to_frame(xdp);
}

/* Super-frames */

/* Of a packet that begins with its Ethernet header: segments as they would be on a wire. */
struct sk_buff *nk_skb_segment(struct sk_buff *skb)
{
	const struct ethhdr *eth = (const struct ethhdr *)skb->data;
	u32 header = ETH_HLEN;
	__be16 type;

	skb->protocol = eth->h_proto;
	for (type = eth->h_proto; eth_type_vlan(type) && header + VLAN_HLEN <= skb_headlen(skb); header += VLAN_HLEN)
		type = ((const struct vlan_hdr *)(skb->data + header))->h_vlan_encapsulated_proto;
	skb_reset_mac_header(skb);
	skb_set_network_header(skb, header);
	/* Fragments are shared, and checksums filled in. */
	return __skb_gso_segment(skb, NETIF_F_SG, false);
}

/* Returns what follows. */
struct sk_buff *nk_skb_unlink(struct sk_buff *skb)
{
	struct sk_buff *next = skb->next;

	skb_mark_not_on_list(skb);
	return next;
}

void nk_skb_drop_list(struct sk_buff *skb)
{
	kfree_skb_list(skb);
}

/* Frames to send */

u32 nk_xdp_frame_len(const struct xdp_frame *frame)
{
	return xdp_get_frame_len(frame);
}

u32 nk_xdp_frame_frags(const struct xdp_frame *frame)
{
	return xdp_frame_has_frags(frame) ? xdp_get_shared_info_from_frame(frame)->nr_frags : 0;
}

bool nk_xdp_map_head(struct device *dev, const struct xdp_frame *frame, dma_addr_t *addr, u32 *len)
{
	*len = frame->len;
	*addr = dma_map_single(dev, frame->data, frame->len, DMA_TO_DEVICE);
	return !dma_mapping_error(dev, *addr);
}

bool nk_xdp_map_frag(struct device *dev, const struct xdp_frame *frame, u32 i, dma_addr_t *addr, u32 *len)
{
	const skb_frag_t *frag = &xdp_get_shared_info_from_frame(frame)->frags[i];

	*len = skb_frag_size(frag);
	*addr = skb_frag_dma_map(dev, frag, 0, *len, DMA_TO_DEVICE);
	return !dma_mapping_error(dev, *addr);
}

/* The hash that a packet of the same flow would have, 0 if there is no flow in it. */
u32 nk_xdp_frame_hash(const struct net_device *dev, const struct xdp_frame *frame, bool *l4)
{
	const struct ethhdr *eth = frame->data;
	struct flow_keys keys;

	*l4 = false;
	memset(&keys, 0, sizeof(keys));
	if (frame->len < ETH_HLEN ||
	    !__skb_flow_dissect(dev_net(dev), NULL, &flow_keys_dissector, &keys, frame->data, eth->h_proto, ETH_HLEN,
				frame->len, FLOW_DISSECTOR_F_STOP_AT_FLOW_LABEL))
		return 0;
	*l4 = flow_keys_have_l4(&keys);
	return flow_hash_from_keys(&keys);
}

/* Page pools do not take pages back with interrupts off, as netpoll has them: then nothing is done. */
bool nk_xdp_return_frame(struct xdp_frame *frame)
{
	if (irqs_disabled())
		return false;
	xdp_return_frame(frame);
	return true;
}

u32 nk_this_cpu(void)
{
	return raw_smp_processor_id();
}

/* What is sent past the stack keeps the watchdog from taking a full queue for a stuck one. */
void nk_tx_in_use(struct netdev_queue *txq)
{
	txq_trans_cond_update(txq);
}
