// SPDX-License-Identifier: GPL-2.0
/* See helpers.h. */

#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/hrtimer.h>
#include <linux/if_vlan.h>
#include <linux/rtnetlink.h>
#include <linux/sched.h>
#include <linux/sched/stat.h>
#include <linux/skbuff.h>
#include <net/genetlink.h>
#include <net/page_pool/helpers.h>

#include "helpers.h"

/* Network device */

void nk_dev_hold(struct net_device *dev)
{
	dev_hold(dev);
}

void nk_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

void nk_set_parent(struct net_device *dev, struct device *parent)
{
	SET_NETDEV_DEV(dev, parent);
}

void nk_set_address_flags(struct net_device *dev)
{
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE | IFF_UNICAST_FLT;
}

u64 nk_vlan_features_check(struct sk_buff *skb, u64 features)
{
	return vlan_features_check(skb, features);
}

void nk_eth_hw_addr_set(struct net_device *dev, const u8 *addr)
{
	eth_hw_addr_set(dev, addr);
}

int nk_set_xps(struct net_device *dev, u16 queue, u32 cpu)
{
	if (cpu >= nr_cpu_ids || queue >= dev->num_tx_queues)
		return -EINVAL;
	return netif_set_xps_queue(dev, cpumask_of(cpu), queue);
}

bool nk_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}

bool nk_netif_device_present(const struct net_device *dev)
{
	return netif_device_present(dev);
}

bool nk_netif_carrier_ok(const struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

void nk_rtnl_lock(void)
{
	rtnl_lock();
}

void nk_rtnl_unlock(void)
{
	rtnl_unlock();
}

/* Generic netlink: dumps, commands that change something, and notifications of the only multicast group of a family */

u8 nk_genl_command(const struct netlink_callback *cb)
{
	return genl_info_dump((struct netlink_callback *)cb)->genlhdr->cmd;
}

void *nk_genl_context(struct netlink_callback *cb)
{
	BUILD_BUG_ON(sizeof(cb->ctx) < 2 * sizeof(u32));
	return cb->ctx;
}

void *nk_genl_begin(struct sk_buff *skb, struct netlink_callback *cb)
{
	const struct genl_info *info = genl_info_dump(cb);

	return genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq, info->family, NLM_F_MULTI,
			   nk_genl_command(cb));
}

/* The next message of a dump is marked as interrupted if this is another number than at the message before it. */
void nk_genl_set_seq(struct netlink_callback *cb, u32 seq)
{
	cb->seq = seq;
}

void nk_genl_end(struct sk_buff *skb, struct netlink_callback *cb, void *header)
{
	genl_dump_check_consistent(cb, header);
	genlmsg_end(skb, header);
}

void nk_genl_cancel(struct sk_buff *skb, void *header)
{
	genlmsg_cancel(skb, header);
}

struct sk_buff *nk_genl_new(const struct genl_family *family, u8 command, void **header)
{
	struct sk_buff *skb = genlmsg_new(GENLMSG_DEFAULT_SIZE, GFP_KERNEL);

	if (!skb)
		return NULL;
	*header = genlmsg_put(skb, 0, 0, family, 0, command);
	if (!*header) {
		nlmsg_free(skb);
		return NULL;
	}
	return skb;
}

void nk_genl_free(struct sk_buff *skb)
{
	nlmsg_free(skb);
}

u8 nk_genl_request_command(const struct genl_info *info)
{
	return info->genlhdr->cmd;
}

static const struct nlattr *genl_attribute(const struct genl_info *info, u16 attribute)
{
	return attribute <= NK_GENL_MAX_ATTRIBUTE && info->attrs ? info->attrs[attribute] : NULL;
}

/* Attributes of such a command, whose policy has room for NK_GENL_MAX_ATTRIBUTE; false and NULL without one of the type. */
bool nk_genl_u32(const struct genl_info *info, u16 attribute, u32 *value)
{
	const struct nlattr *found = genl_attribute(info, attribute);

	if (!found || nla_len(found) != sizeof(*value))
		return false;
	*value = nla_get_u32(found);
	return true;
}

bool nk_genl_u64(const struct genl_info *info, u16 attribute, u64 *value)
{
	const struct nlattr *found = genl_attribute(info, attribute);

	if (!found || nla_len(found) != sizeof(*value))
		return false;
	*value = nla_get_u64(found);
	return true;
}

/* It stays as long as the request. */
const u8 *nk_genl_bytes(const struct genl_info *info, u16 attribute, size_t *len)
{
	const struct nlattr *found = genl_attribute(info, attribute);

	if (!found)
		return NULL;
	*len = nla_len(found);
	return nla_data(found);
}

/* Name an attribute in the extended acknowledgement: one that is missing, or a bad one. */
void nk_genl_missing_attribute(const struct genl_info *info, u16 attribute)
{
	NL_SET_ERR_ATTR_MISS(info->extack, NULL, attribute);
}

void nk_genl_bad_attribute(const struct genl_info *info, u16 attribute)
{
	const struct nlattr *found = genl_attribute(info, attribute);

	if (found)
		NL_SET_BAD_ATTR(info->extack, found);
}

/* What such an attribute may be: any u32, or one up to a number, any u64, a string of at most so many bytes, or so many bytes. */
void nk_genl_policy_u32(struct nla_policy *policy)
{
	policy->type = NLA_U32;
}

void nk_genl_policy_u32_max(struct nla_policy *policy, s16 max)
{
	policy->type = NLA_U32;
	policy->validation_type = NLA_VALIDATE_MAX;
	policy->max = max;
}

void nk_genl_policy_u64(struct nla_policy *policy)
{
	policy->type = NLA_U64;
}

void nk_genl_policy_string(struct nla_policy *policy, u16 max)
{
	policy->type = NLA_NUL_STRING;
	policy->len = max;
}

void nk_genl_policy_bytes(struct nla_policy *policy, s16 len)
{
	/* NLA_POLICY_EXACT_LEN(), of which there is no assignment. */
	policy->type = NLA_BINARY;
	policy->validation_type = NLA_VALIDATE_RANGE;
	policy->min = len;
	policy->max = len;
}

void nk_genl_multicast(const struct genl_family *family, struct sk_buff *skb, void *header)
{
	genlmsg_end(skb, header);
	genlmsg_multicast(family, skb, 0, 0, GFP_KERNEL);
}

/* Transmit queue */

void nk_tx_lock_bh(struct netdev_queue *txq)
{
	__netif_tx_lock_bh(txq);
}

void nk_tx_unlock_bh(struct netdev_queue *txq)
{
	__netif_tx_unlock_bh(txq);
}

/* With softirqs or interrupts off. */
bool nk_tx_trylock(struct netdev_queue *txq)
{
	return __netif_tx_trylock(txq);
}

void nk_tx_unlock(struct netdev_queue *txq)
{
	__netif_tx_unlock(txq);
}

bool nk_xmit_more(void)
{
	return netdev_xmit_more();
}

bool nk_tx_sent(struct netdev_queue *txq, unsigned int bytes, bool more)
{
	return __netdev_tx_sent_queue(txq, bytes, more);
}

void nk_tx_completed(struct netdev_queue *txq, unsigned int packets, unsigned int bytes)
{
	netdev_tx_completed_queue(txq, packets, bytes);
}

void nk_tx_reset(struct netdev_queue *txq)
{
	netdev_tx_reset_queue(txq);
}

void nk_tx_stop(struct netdev_queue *txq)
{
	netif_tx_stop_queue(txq);
}

bool nk_tx_stopped(const struct netdev_queue *txq)
{
	return netif_tx_queue_stopped(txq);
}

void nk_tx_start_all(struct net_device *dev)
{
	netif_tx_start_all_queues(dev);
}

void nk_tx_disable(struct net_device *dev)
{
	netif_tx_disable(dev);
}

/* NAPI */

void nk_napi_add(struct net_device *dev, struct napi_struct *napi, int (*poll)(struct napi_struct *, int), int weight)
{
	netif_napi_add_weight(dev, napi, poll, weight);
}

void nk_napi_del(struct napi_struct *napi)
{
	netif_napi_del(napi);
}

void nk_napi_add_config(struct net_device *dev, struct napi_struct *napi, int (*poll)(struct napi_struct *, int), int index)
{
	netif_napi_add_config(dev, napi, poll, index);
}

void nk_napi_set_irq(struct napi_struct *napi, int irq)
{
	netif_napi_set_irq(napi, irq);
}

/*
 * Where softirqs can run they do so before this returns. Else a softirq that runs already gets to it, or the interrupt that
 * this is in, or ksoftirqd.
 */
bool nk_napi_schedule_any(struct napi_struct *napi)
{
	bool scheduled;

	if (irqs_disabled())
		return napi_schedule(napi);
	local_bh_disable();
	scheduled = napi_schedule(napi);
	local_bh_enable();
	return scheduled;
}

/*
 * From the timer's function, which then restarts it. False if somebody has started it since it expired: changing a queued timer
 * corrupts the queue.
 */
bool nk_hrtimer_set_next(struct hrtimer *timer, ktime_t expires)
{
	if (hrtimer_is_queued(timer))
		return false;
	hrtimer_set_expires(timer, expires);
	return true;
}

/*
 * A softirq that came over the idle task or runs in a thread like ksoftirqd, while nobody waits for the processor. Over any
 * other task it keeps that from running, also over a kworker: that may be one that copies for this softirq.
 */
bool nk_softirq_is_alone(void)
{
	if (need_resched())
		return false;
	return is_idle_task(current) ||
	       ((current->flags & (PF_KTHREAD | PF_WQ_WORKER)) == PF_KTHREAD && single_task_running());
}

void nk_napi_gro_receive(struct napi_struct *napi, struct sk_buff *skb)
{
	napi_gro_receive(napi, skb);
}

/* Socket buffer */

bool nk_skb_map_head(struct device *dev, const struct sk_buff *skb, dma_addr_t *addr)
{
	*addr = dma_map_single(dev, skb->data, skb_headlen(skb), DMA_TO_DEVICE);
	return !dma_mapping_error(dev, *addr);
}

bool nk_skb_map_frag(struct device *dev, const struct sk_buff *skb, unsigned int i, dma_addr_t *addr)
{
	const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

	*addr = skb_frag_dma_map(dev, frag, 0, skb_frag_size(frag), DMA_TO_DEVICE);
	return !dma_mapping_error(dev, *addr);
}

void nk_skb_tx_timestamp(struct sk_buff *skb)
{
	skb_tx_timestamp(skb);
}

void nk_skb_consume(struct sk_buff *skb)
{
	/* Netpoll sends with interrupts off; all other reapers are in softirq context, where the skb cache is usable. */
	if (likely(in_softirq() && !irqs_disabled()))
		napi_consume_skb(skb, 1);
	else
		dev_consume_skb_any(skb);
}

void nk_skb_drop(struct sk_buff *skb)
{
	dev_kfree_skb_any(skb);
}

u32 nk_skb_get_hash(struct sk_buff *skb)
{
	return skb_get_hash(skb);
}

void nk_skb_add_page(struct sk_buff *skb, struct page *page, unsigned int offset, unsigned int size,
		     unsigned int truesize)
{
	skb_add_rx_frag(skb, skb_shinfo(skb)->nr_frags, page, offset, size, truesize);
	skb_mark_for_recycle(skb);
}

void nk_skb_set_vlan(struct sk_buff *skb, u16 tci)
{
	__vlan_hwaccel_put_tag(skb, htons(ETH_P_8021Q), tci);
}

void nk_skb_set_hash(struct sk_buff *skb, u32 hash, bool l4)
{
	skb_set_hash(skb, hash, l4 ? PKT_HASH_TYPE_L4 : PKT_HASH_TYPE_L3);
}

/* Page pool */

dma_addr_t nk_page_pool_dma_addr(const struct page *page)
{
	return page_pool_get_dma_addr(page);
}

/* The offset is from the page; the function takes one from where the pool's buffers begin. */
void nk_page_pool_sync_for_cpu(const struct page *page, u32 offset, u32 len)
{
	const struct page_pool *pool = pp_page_to_nmdesc(page)->pp;

	page_pool_dma_sync_for_cpu(pool, page, offset - pool->p.offset, len);
}

void nk_page_pool_sync_for_device(const struct page *page, u32 offset, u32 len)
{
	const struct page_pool *pool = pp_page_to_nmdesc(page)->pp;

	dma_sync_single_range_for_device(pool->p.dev, page_pool_get_dma_addr(page), offset, len, pool->p.dma_dir);
}

void nk_page_pool_get(struct page *page)
{
	page_pool_ref_page(page);
}

void nk_page_pool_put(struct page *page)
{
	page_pool_put_full_page(pp_page_to_nmdesc(page)->pp, page, false);
}

void *nk_page_address(const struct page *page)
{
	return page_address(page);
}
