/* SPDX-License-Identifier: GPL-2.0 */
/* C inline functions and macros that nk calls, one out-of-line function each; bound by bindgen. */

#ifndef _NK_HELPERS_H
#define _NK_HELPERS_H

#include <linux/ethtool.h>
#include <linux/gfp.h>
#include <linux/hrtimer.h>
#include <linux/jiffies.h>
#include <linux/netdevice.h>
#include <net/genetlink.h>
#include <net/page_pool/types.h>

/* Macros that bindgen cannot evaluate. */
enum nk_const {
	NK_GFP_RX = (__force int)(GFP_ATOMIC | __GFP_NOWARN),
	NK_TICK_NSEC = TICK_NSEC,
	NK_GENL_MAX_ATTRIBUTE = 31,
	NK_GENL_ADMIN_PERM = GENL_ADMIN_PERM,
	NK_PP_FLAG_DMA_MAP = PP_FLAG_DMA_MAP,
	NK_PP_FLAG_DMA_SYNC_DEV = PP_FLAG_DMA_SYNC_DEV,
	NK_COALESCE_RX_USECS = ETHTOOL_COALESCE_RX_USECS,
	NK_COALESCE_RX_MAX_FRAMES = ETHTOOL_COALESCE_RX_MAX_FRAMES,
	NK_COALESCE_TX_USECS = ETHTOOL_COALESCE_TX_USECS,
	NK_COALESCE_TX_MAX_FRAMES = ETHTOOL_COALESCE_TX_MAX_FRAMES,
	NK_COALESCE_ADAPTIVE_RX = ETHTOOL_COALESCE_USE_ADAPTIVE_RX,
	NK_COALESCE_ADAPTIVE_TX = ETHTOOL_COALESCE_USE_ADAPTIVE_TX,
};

/* Network device */
void nk_dev_hold(struct net_device *dev);
void nk_dev_put(struct net_device *dev);
void nk_set_parent(struct net_device *dev, struct device *parent);
void nk_set_address_flags(struct net_device *dev);
u64 nk_vlan_features_check(struct sk_buff *skb, u64 features);
void nk_eth_hw_addr_set(struct net_device *dev, const u8 *addr);
int nk_set_xps(struct net_device *dev, u16 queue, u32 cpu);
bool nk_netif_running(const struct net_device *dev);
bool nk_netif_device_present(const struct net_device *dev);
bool nk_netif_carrier_ok(const struct net_device *dev);
void nk_rtnl_lock(void);
void nk_rtnl_unlock(void);

/* Generic netlink: dumps, commands that change something, and notifications of the only multicast group of a family */
u8 nk_genl_command(const struct netlink_callback *cb);
void *nk_genl_context(struct netlink_callback *cb);
void *nk_genl_begin(struct sk_buff *skb, struct netlink_callback *cb);
void nk_genl_set_seq(struct netlink_callback *cb, u32 seq);
void nk_genl_end(struct sk_buff *skb, struct netlink_callback *cb, void *header);
void nk_genl_cancel(struct sk_buff *skb, void *header);
struct sk_buff *nk_genl_new(const struct genl_family *family, u8 command, void **header);
void nk_genl_free(struct sk_buff *skb);
u8 nk_genl_request_command(const struct genl_info *info);
bool nk_genl_u32(const struct genl_info *info, u16 attribute, u32 *value);
bool nk_genl_u64(const struct genl_info *info, u16 attribute, u64 *value);
const u8 *nk_genl_bytes(const struct genl_info *info, u16 attribute, size_t *len);
void nk_genl_missing_attribute(const struct genl_info *info, u16 attribute);
void nk_genl_bad_attribute(const struct genl_info *info, u16 attribute);
void nk_genl_policy_u32(struct nla_policy *policy);
void nk_genl_policy_u32_max(struct nla_policy *policy, s16 max);
void nk_genl_policy_u64(struct nla_policy *policy);
void nk_genl_policy_string(struct nla_policy *policy, u16 max);
void nk_genl_policy_bytes(struct nla_policy *policy, s16 len);
void nk_genl_multicast(const struct genl_family *family, struct sk_buff *skb, void *header);

/* Transmit queue */
void nk_tx_lock_bh(struct netdev_queue *txq);
void nk_tx_unlock_bh(struct netdev_queue *txq);
bool nk_tx_trylock(struct netdev_queue *txq);
void nk_tx_unlock(struct netdev_queue *txq);
bool nk_xmit_more(void);
bool nk_tx_sent(struct netdev_queue *txq, unsigned int bytes, bool more);
void nk_tx_completed(struct netdev_queue *txq, unsigned int packets, unsigned int bytes);
void nk_tx_reset(struct netdev_queue *txq);
void nk_tx_stop(struct netdev_queue *txq);
bool nk_tx_stopped(const struct netdev_queue *txq);
void nk_tx_start_all(struct net_device *dev);
void nk_tx_disable(struct net_device *dev);

/* NAPI */
void nk_napi_add(struct net_device *dev, struct napi_struct *napi, int (*poll)(struct napi_struct *, int), int weight);
void nk_napi_del(struct napi_struct *napi);
void nk_napi_add_config(struct net_device *dev, struct napi_struct *napi, int (*poll)(struct napi_struct *, int), int index);
void nk_napi_set_irq(struct napi_struct *napi, int irq);
bool nk_napi_schedule_any(struct napi_struct *napi);
bool nk_hrtimer_set_next(struct hrtimer *timer, ktime_t expires);
bool nk_softirq_is_alone(void);
void nk_napi_gro_receive(struct napi_struct *napi, struct sk_buff *skb);

/* Socket buffer */
bool nk_skb_map_head(struct device *dev, const struct sk_buff *skb, dma_addr_t *addr);
bool nk_skb_map_frag(struct device *dev, const struct sk_buff *skb, unsigned int i, dma_addr_t *addr);
void nk_skb_tx_timestamp(struct sk_buff *skb);
void nk_skb_consume(struct sk_buff *skb);
void nk_skb_drop(struct sk_buff *skb);
u32 nk_skb_get_hash(struct sk_buff *skb);
void nk_skb_add_page(struct sk_buff *skb, struct page *page, unsigned int offset, unsigned int size,
		     unsigned int truesize);
void nk_skb_set_vlan(struct sk_buff *skb, u16 tci);
void nk_skb_set_hash(struct sk_buff *skb, u32 hash, bool l4);

/* Page pool */
dma_addr_t nk_page_pool_dma_addr(const struct page *page);
void nk_page_pool_sync_for_cpu(const struct page *page, u32 offset, u32 len);
void nk_page_pool_sync_for_device(const struct page *page, u32 offset, u32 len);
void nk_page_pool_get(struct page *page);
void nk_page_pool_put(struct page *page);
void *nk_page_address(const struct page *page);

#endif
