// SPDX-License-Identifier: GPL-2.0
//! Events of the controller, parsed.

use nupa_proto::{
    eqe::{Eqe, EventType},
    ident::UnknownValue,
};

/// log2 of the entries of an event queue. Events that find no room come later.
pub(crate) const LOG_ENTRIES: u8 = 13;
/// As [`LOG_ENTRIES`], where the controller cannot do more.
pub(crate) const MIN_LOG_ENTRIES: u8 = 11;

/// Events that are handed out at most in one go, with interrupts off.
const BUDGET: u32 = 64;

/// Where events come from.
pub(crate) trait Source {
    /// Takes the next one.
    fn poll(&mut self) -> Option<Eqe>;

    /// Asks for an interrupt at the next one. Returns whether some are there already; the interrupt may not come then.
    fn arm(&mut self) -> bool;
}

/// Hands out events until there are none and an interrupt is asked for. Returns false if it stopped before, after as many as
/// there is time for: no interrupt comes then, and the caller sees to it that this is called again.
pub(crate) fn hand_out(source: &mut impl Source, mut each: impl FnMut(&Eqe)) -> bool {
    for _ in 0..BUDGET {
        match source.poll() {
            Some(eqe) => each(&eqe),
            None if source.arm() => {}
            None => return true,
        }
    }
    false
}

/// What an event queue entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An armed completion queue has a new entry.
    Completion(u32),
    /// A completion queue overflowed.
    CqError(u32),
    /// Something happened to a queue pair.
    Qp(u32, ObjectEvent),
    /// Something happened to a shared receive queue.
    Srq(u32, ObjectEvent),
    /// Something for process context.
    News(News),
    /// What is for process context found no room, and is to be read anew.
    Lost,
    /// Nothing to be done: the commands' sender looks for completions itself.
    Nothing,
}

/// What happened to a queue pair or a shared receive queue. The comments name the InfiniBand event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectEvent {
    /// The queue pair went to the error state on its own (`IB_EVENT_QP_FATAL`).
    QpFatal,
    /// The queue pair refused a request of its peer and went to the error state (`IB_EVENT_QP_ACCESS_ERR`).
    QpAccess,
    /// The queue pair is in the error state and takes no more entries from its shared receive queue
    /// (`IB_EVENT_QP_LAST_WQE_REACHED`).
    LastWqe,
    /// The queue pair was told to drain its send queue and has (`IB_EVENT_SQ_DRAINED`).
    SqDrained,
    /// The queue pair got its first message before it was ready to send (`IB_EVENT_COMM_EST`).
    CommEstablished,
    /// The shared receive queue fell below its limit, which is off now (`IB_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimit,
    /// The shared receive queue hands out no more entries (`IB_EVENT_SRQ_ERR`).
    SrqFatal,
}

/// Events that are handled in process context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The link of this node came up.
    LinkUp,
    /// The link of this node went down.
    LinkDown,
    /// A node joined; its epoch.
    NodeUp(u16, u32),
    /// A node left.
    NodeDown(u16),
    /// A vital completion queue overflowed.
    CqError(u32),
    /// A vital queue pair failed.
    QpFatal(u32),
    /// The function stopped.
    Fatal,
}

impl TryFrom<&Eqe> for Event {
    type Error = UnknownValue;

    fn try_from(eqe: &Eqe) -> Result<Self, UnknownValue> {
        let object = eqe.object.get();
        let node = eqe.node.get();
        Ok(match EventType::try_from(eqe.event_type)? {
            EventType::Completion => Self::Completion(object),
            EventType::CqError => Self::CqError(object),
            EventType::QpFatal => Self::Qp(object, ObjectEvent::QpFatal),
            EventType::QpAccess => Self::Qp(object, ObjectEvent::QpAccess),
            EventType::LastWqe => Self::Qp(object, ObjectEvent::LastWqe),
            EventType::SqDrained => Self::Qp(object, ObjectEvent::SqDrained),
            EventType::CommEstablished => Self::Qp(object, ObjectEvent::CommEstablished),
            EventType::SrqLimit => Self::Srq(object, ObjectEvent::SrqLimit),
            EventType::SrqFatal => Self::Srq(object, ObjectEvent::SrqFatal),
            EventType::LinkUp => Self::News(News::LinkUp),
            EventType::LinkDown => Self::News(News::LinkDown),
            EventType::NodeUp => Self::News(News::NodeUp(node, object)),
            EventType::NodeDown => Self::News(News::NodeDown(node)),
            EventType::Fatal => Self::News(News::Fatal),
            EventType::EventsLost => Self::Lost,
            EventType::Admin => Self::Nothing,
        })
    }
}

/// Entries of a [`Backlog`].
const BACKLOG: usize = 64;

/// News on their way from interrupt to process context. When they do not fit, the state is to be read anew.
#[derive(Debug)]
pub(crate) struct Backlog {
    news: [News; BACKLOG],
    first: usize,
    len: usize,
    lost: bool,
}

impl Backlog {
    /// An empty one.
    pub(crate) const fn new() -> Self {
        Self {
            news: [News::Fatal; BACKLOG],
            first: 0,
            len: 0,
            lost: false,
        }
    }

    /// Adds to the end.
    pub(crate) fn push(&mut self, news: News) {
        let at = self.first.wrapping_add(self.len) % BACKLOG;
        match self.news.get_mut(at) {
            Some(slot) if self.len < BACKLOG => {
                *slot = news;
                self.len = self.len.wrapping_add(1);
            }
            _ => self.lost = true,
        }
    }

    /// Takes from the front.
    pub(crate) fn pop(&mut self) -> Option<News> {
        if self.len == 0 {
            return None;
        }
        let news = self.news.get(self.first).copied();
        self.first = self.first.wrapping_add(1) % BACKLOG;
        self.len = self.len.wrapping_sub(1);
        news
    }

    /// Notes that news were lost on their way here.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether news were lost since the last time this was asked.
    pub(crate) fn take_lost(&mut self) -> bool {
        core::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eqe(event_type: u8, node: u16, object: u32) -> Eqe {
        Eqe {
            event_type,
            node: node.into(),
            object: object.into(),
            ..Eqe::default()
        }
    }

    /// A queue that gets events at the worst of times: when it has just been found empty.
    struct Queue {
        events: std::collections::VecDeque<u32>,
        late: u32,
        next: u32,
        armed: bool,
    }

    impl Source for Queue {
        fn poll(&mut self) -> Option<Eqe> {
            assert!(!self.armed, "polled after an interrupt was asked for");
            let object = self.events.pop_front()?;
            Some(eqe(EventType::Completion.to_wire(), 0, object))
        }

        fn arm(&mut self) -> bool {
            if self.late != 0 {
                self.late -= 1;
                self.events.push_back(self.next);
                self.next += 1;
                return true;
            }
            self.armed = true;
            false
        }
    }

    #[test]
    fn no_run_hands_out_more_than_its_budget_and_none_is_lost() {
        for (count, late) in [
            (0, 0),
            (1, 0),
            (63, 0),
            (64, 0),
            (65, 0),
            (16_384, 0),
            (0, 200),
            (100, 33),
        ] {
            let mut queue = Queue {
                events: (0..count).collect(),
                late,
                next: count,
                armed: false,
            };
            let mut seen = Vec::new();
            loop {
                let before = seen.len();
                let done = hand_out(&mut queue, |eqe| seen.push(eqe.object.get()));
                assert!(seen.len() - before <= BUDGET as usize);
                // Whoever is told that all is done gets an interrupt, and nobody else does.
                assert_eq!(done, queue.armed);
                if done {
                    break;
                }
            }
            assert!(
                seen.iter().copied().eq(0..count + late),
                "{count} and {late}"
            );
        }
    }

    #[test]
    fn every_defined_type_parses_and_no_other() {
        for value in 0..=u8::MAX {
            let defined = EventType::ALL.iter().any(|event| event.to_wire() == value);
            assert_eq!(
                Event::try_from(&eqe(value, 1, 2)).is_ok(),
                defined,
                "{value}"
            );
        }
        let node_up = EventType::NodeUp.to_wire();
        assert_eq!(
            Event::try_from(&eqe(node_up, 7, 2)),
            Ok(Event::News(News::NodeUp(7, 2)))
        );
        assert_eq!(
            Event::try_from(&eqe(EventType::Completion.to_wire(), 0, 9)),
            Ok(Event::Completion(9))
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_event_or_an_error(bytes in proptest::prelude::any::<[u8; 16]>()) {
            let eqe: Eqe = zerocopy::transmute!(bytes);
            let parsed = Event::try_from(&eqe);
            assert_eq!(parsed.is_ok(), EventType::try_from(bytes[0]).is_ok());
        }
    }

    #[test]
    fn backlog_keeps_order_and_tells_what_it_lost() {
        let mut backlog = Backlog::new();
        for round in 0..5u16 {
            for node in 0..BACKLOG as u16 {
                backlog.push(News::NodeUp(node ^ round, 0));
            }
            assert!(!backlog.take_lost());
            backlog.push(News::Fatal);
            assert!(backlog.take_lost());
            assert!(!backlog.take_lost());
            for node in 0..BACKLOG as u16 {
                assert_eq!(backlog.pop(), Some(News::NodeUp(node ^ round, 0)));
            }
            assert_eq!(backlog.pop(), None);
        }
    }
}
