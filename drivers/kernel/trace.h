/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of nupa_fabric.ko; drivers/kernel/trace.rs calls them, Documentation/tracing.md lists them. `scripts/lint tracing`
 * compares that page, and the names of values below, with what they are the names of.
 */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM nupa

#if !defined(NK_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NK_TRACE_H

#include <linux/device.h>
#include <linux/tracepoint.h>

#define show_nupa_state(value) __print_symbolic(value,		\
	{ 0, "Down" },						\
	{ 1, "Running" },					\
	{ 2, "Paused" },					\
	{ 3, "Lost" },						\
	{ 4, "Removed" })

#define show_nupa_reason(value) __print_symbolic(value,		\
	{ 0, "Fault" },						\
	{ 1, "ResetByOthers" },					\
	{ 2, "AdminQueue" },					\
	{ 3, "EventQueue" },					\
	{ 4, "Cq" },						\
	{ 5, "Qp" },						\
	{ 6, "Unreadable" })

#define show_nupa_fault(value) __print_symbolic(value,		\
	{ 0, "NONE" },						\
	{ 1, "ADMIN_RING" },					\
	{ 2, "ADMIN_INDEX" },					\
	{ 3, "EVENT_QUEUE" },					\
	{ 4, "DOORBELL_MEMORY" },				\
	{ 5, "POOL" })

#define show_nupa_opcode(value) __print_symbolic(value,		\
	{ 1, "QueryDevice" },					\
	{ 2, "QueryNode" },					\
	{ 3, "ListNodes" },					\
	{ 4, "QueryCounters" },					\
	{ 8, "CreateEq" },					\
	{ 9, "DestroyEq" },					\
	{ 10, "CreateCq" },					\
	{ 11, "ModifyCq" },					\
	{ 12, "DestroyCq" },					\
	{ 13, "AllocPd" },					\
	{ 14, "DeallocPd" },					\
	{ 15, "CreateMr" },					\
	{ 16, "DestroyMr" },					\
	{ 17, "CreateQp" },					\
	{ 18, "ModifyQp" },					\
	{ 19, "QueryQp" },					\
	{ 20, "DestroyQp" },					\
	{ 21, "ResizeCq" },					\
	{ 24, "SetRxFilter" },					\
	{ 25, "SetRss" },					\
	{ 32, "CreateSrq" },					\
	{ 33, "ModifySrq" },					\
	{ 34, "QuerySrq" },					\
	{ 35, "DestroySrq" },					\
	{ 36, "ModifyMr" },					\
	{ 37, "AllocKey" },					\
	{ 38, "SetGid" },					\
	{ 39, "AttachMulticast" },				\
	{ 40, "DetachMulticast" })

#define show_nupa_status(value) __print_symbolic(value,		\
	{ 0, "Success" },					\
	{ 1, "Unsupported" },					\
	{ 2, "InvalidField" },					\
	{ 3, "NoSuchObject" },					\
	{ 4, "Busy" },						\
	{ 5, "NoResources" },					\
	{ 6, "BadAddress" },					\
	{ 7, "InvalidState" },					\
	{ 8, "NodeDown" },					\
	{ 9, "Internal" })

#define show_nupa_event(value) __print_symbolic(value,		\
	{ 1, "Completion" },					\
	{ 2, "CqError" },					\
	{ 3, "QpFatal" },					\
	{ 4, "QpAccess" },					\
	{ 5, "Admin" },						\
	{ 6, "LinkUp" },					\
	{ 7, "LinkDown" },					\
	{ 8, "NodeUp" },					\
	{ 9, "NodeDown" },					\
	{ 10, "Fatal" },					\
	{ 11, "SrqLimit" },					\
	{ 12, "LastWqe" },					\
	{ 13, "SqDrained" },					\
	{ 14, "CommEstablished" },				\
	{ 15, "SrqFatal" },					\
	{ 16, "EventsLost" })

#define show_nupa_qp_type(value) __print_symbolic(value,	\
	{ 0, "Rc" },						\
	{ 1, "Ud" },						\
	{ 2, "Raw" })

#define show_nupa_qp_state(value) __print_symbolic(value,	\
	{ 0, "Reset" },						\
	{ 1, "Init" },						\
	{ 2, "Rtr" },						\
	{ 3, "Rts" },						\
	{ 4, "Sqd" },						\
	{ 5, "Sqe" },						\
	{ 6, "Err" })

#define show_nupa_key_kind(value) __print_symbolic(value,	\
	{ 0, "FastReg" },					\
	{ 1, "Window" })

TRACE_EVENT(nupa_controller_state,
	TP_PROTO(const struct device *dev, u32 old, u32 new),
	TP_ARGS(dev, old, new),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, old)
		__field(u32, new)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->old = old;
		__entry->new = new;
	),
	TP_printk("device=%s old=%s new=%s", __get_str(device), show_nupa_state(__entry->old),
		  show_nupa_state(__entry->new))
);

TRACE_EVENT(nupa_reset,
	TP_PROTO(const struct device *dev, u8 reason, u32 fault),
	TP_ARGS(dev, reason, fault),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u8, reason)
		__field(u32, fault)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->reason = reason;
		__entry->fault = fault;
	),
	TP_printk("device=%s reason=%s fault=%s", __get_str(device), show_nupa_reason(__entry->reason),
		  show_nupa_fault(__entry->fault))
);

TRACE_EVENT(nupa_link,
	TP_PROTO(const struct device *dev, bool up),
	TP_ARGS(dev, up),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(bool, up)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->up = up;
	),
	TP_printk("device=%s up=%d", __get_str(device), __entry->up)
);

TRACE_EVENT(nupa_peer,
	TP_PROTO(const struct device *dev, u16 node, bool up, u32 epoch),
	TP_ARGS(dev, node, up, epoch),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u16, node)
		__field(bool, up)
		__field(u32, epoch)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->node = node;
		__entry->up = up;
		__entry->epoch = epoch;
	),
	TP_printk("device=%s node=%u up=%d epoch=%u", __get_str(device), __entry->node, __entry->up, __entry->epoch)
);

TRACE_EVENT(nupa_admin_cmd,
	TP_PROTO(const struct device *dev, u16 opcode, u16 status, int error, s64 duration_ns),
	TP_ARGS(dev, opcode, status, error, duration_ns),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u16, opcode)
		__field(u16, status)
		__field(int, error)
		__field(s64, duration_ns)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->opcode = opcode;
		__entry->status = status;
		__entry->error = error;
		__entry->duration_ns = duration_ns;
	),
	TP_printk("device=%s opcode=%s status=%s error=%d duration_ns=%lld", __get_str(device),
		  show_nupa_opcode(__entry->opcode), show_nupa_status(__entry->status), __entry->error,
		  __entry->duration_ns)
);

TRACE_EVENT(nupa_async_event,
	TP_PROTO(const struct device *dev, u8 event, u32 number),
	TP_ARGS(dev, event, number),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u8, event)
		__field(u32, number)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->event = event;
		__entry->number = number;
	),
	TP_printk("device=%s event=%s number=%u", __get_str(device), show_nupa_event(__entry->event), __entry->number)
);

TRACE_EVENT(nupa_qp_create,
	TP_PROTO(const struct device *dev, u32 qpn, u8 type, u32 pd, u32 send_cqn, u32 recv_cqn),
	TP_ARGS(dev, qpn, type, pd, send_cqn, recv_cqn),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, qpn)
		__field(u8, type)
		__field(u32, pd)
		__field(u32, send_cqn)
		__field(u32, recv_cqn)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
		__entry->type = type;
		__entry->pd = pd;
		__entry->send_cqn = send_cqn;
		__entry->recv_cqn = recv_cqn;
	),
	TP_printk("device=%s qpn=%u type=%s pd=%u send_cqn=%u recv_cqn=%u", __get_str(device), __entry->qpn,
		  show_nupa_qp_type(__entry->type), __entry->pd, __entry->send_cqn, __entry->recv_cqn)
);

TRACE_EVENT(nupa_qp_modify,
	TP_PROTO(const struct device *dev, u32 qpn, u8 state),
	TP_ARGS(dev, qpn, state),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, qpn)
		__field(u8, state)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
		__entry->state = state;
	),
	TP_printk("device=%s qpn=%u state=%s", __get_str(device), __entry->qpn, show_nupa_qp_state(__entry->state))
);

TRACE_EVENT(nupa_qp_destroy,
	TP_PROTO(const struct device *dev, u32 qpn),
	TP_ARGS(dev, qpn),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, qpn)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->qpn = qpn;
	),
	TP_printk("device=%s qpn=%u", __get_str(device), __entry->qpn)
);

TRACE_EVENT(nupa_cq_create,
	TP_PROTO(const struct device *dev, u32 cqn, u32 entries, u32 eqn),
	TP_ARGS(dev, cqn, entries, eqn),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, cqn)
		__field(u32, entries)
		__field(u32, eqn)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->cqn = cqn;
		__entry->entries = entries;
		__entry->eqn = eqn;
	),
	TP_printk("device=%s cqn=%u entries=%u eqn=%u", __get_str(device), __entry->cqn, __entry->entries, __entry->eqn)
);

TRACE_EVENT(nupa_cq_destroy,
	TP_PROTO(const struct device *dev, u32 cqn),
	TP_ARGS(dev, cqn),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, cqn)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->cqn = cqn;
	),
	TP_printk("device=%s cqn=%u", __get_str(device), __entry->cqn)
);

TRACE_EVENT(nupa_srq_create,
	TP_PROTO(const struct device *dev, u32 srqn, u32 pd, u32 entries),
	TP_ARGS(dev, srqn, pd, entries),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, srqn)
		__field(u32, pd)
		__field(u32, entries)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->srqn = srqn;
		__entry->pd = pd;
		__entry->entries = entries;
	),
	TP_printk("device=%s srqn=%u pd=%u entries=%u", __get_str(device), __entry->srqn, __entry->pd, __entry->entries)
);

TRACE_EVENT(nupa_srq_destroy,
	TP_PROTO(const struct device *dev, u32 srqn),
	TP_ARGS(dev, srqn),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, srqn)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->srqn = srqn;
	),
	TP_printk("device=%s srqn=%u", __get_str(device), __entry->srqn)
);

TRACE_EVENT(nupa_mr_reg,
	TP_PROTO(const struct device *dev, u32 key, u32 pd, u64 iova, u64 len, u32 access),
	TP_ARGS(dev, key, pd, iova, len, access),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, key)
		__field(u32, pd)
		__field(u64, iova)
		__field(u64, len)
		__field(u32, access)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->key = key;
		__entry->pd = pd;
		__entry->iova = iova;
		__entry->len = len;
		__entry->access = access;
	),
	TP_printk("device=%s key=0x%08x pd=%u iova=0x%llx len=%llu access=0x%x", __get_str(device), __entry->key,
		  __entry->pd, __entry->iova, __entry->len, __entry->access)
);

TRACE_EVENT(nupa_mr_alloc,
	TP_PROTO(const struct device *dev, u32 key, u32 pd, u8 kind, u32 max_pages),
	TP_ARGS(dev, key, pd, kind, max_pages),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, key)
		__field(u32, pd)
		__field(u8, kind)
		__field(u32, max_pages)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->key = key;
		__entry->pd = pd;
		__entry->kind = kind;
		__entry->max_pages = max_pages;
	),
	TP_printk("device=%s key=0x%08x pd=%u kind=%s max_pages=%u", __get_str(device), __entry->key, __entry->pd,
		  show_nupa_key_kind(__entry->kind), __entry->max_pages)
);

TRACE_EVENT(nupa_mr_rereg,
	TP_PROTO(const struct device *dev, u32 old_key, u32 key),
	TP_ARGS(dev, old_key, key),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, old_key)
		__field(u32, key)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->old_key = old_key;
		__entry->key = key;
	),
	TP_printk("device=%s old_key=0x%08x key=0x%08x", __get_str(device), __entry->old_key, __entry->key)
);

TRACE_EVENT(nupa_mr_dereg,
	TP_PROTO(const struct device *dev, u32 key),
	TP_ARGS(dev, key),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, key)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->key = key;
	),
	TP_printk("device=%s key=0x%08x", __get_str(device), __entry->key)
);

#endif

/* For the next header, which reads this one again; Kbuild says in which directory it is. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
