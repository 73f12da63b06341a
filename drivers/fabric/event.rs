// SPDX-License-Identifier: GPL-2.0
//! Events of the controller, parsed.

use nupa_proto::{
    eqe::{Eqe, EventType},
    ident::UnknownValue,
};

/// log2 of the entries of an event queue. A completion queue has at most one event outstanding, a node a few.
pub(crate) const LOG_ENTRIES: u8 = 11;

/// What an event queue entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An armed completion queue has a new entry.
    Completion(u32),
    /// Something for process context.
    News(News),
    /// Nothing to be done: the commands' sender looks for completions itself, and refusals are counted.
    Nothing,
}

/// Events that are handled in process context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The link of this node came up.
    LinkUp,
    /// The link of this node went down.
    LinkDown,
    /// A node joined.
    NodeUp(u16),
    /// A node left.
    NodeDown(u16),
    /// A completion queue overflowed.
    CqError(u32),
    /// A queue pair failed.
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
            EventType::CqError => Self::News(News::CqError(object)),
            EventType::QpFatal => Self::News(News::QpFatal(object)),
            EventType::LinkUp => Self::News(News::LinkUp),
            EventType::LinkDown => Self::News(News::LinkDown),
            EventType::NodeUp => Self::News(News::NodeUp(node)),
            EventType::NodeDown => Self::News(News::NodeDown(node)),
            EventType::Fatal => Self::News(News::Fatal),
            EventType::QpAccess | EventType::Admin | EventType::SrqLimit => Self::Nothing,
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
            Ok(Event::News(News::NodeUp(7)))
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
                backlog.push(News::NodeUp(node ^ round));
            }
            assert!(!backlog.take_lost());
            backlog.push(News::Fatal);
            assert!(backlog.take_lost());
            assert!(!backlog.take_lost());
            for node in 0..BACKLOG as u16 {
                assert_eq!(backlog.pop(), Some(News::NodeUp(node ^ round)));
            }
            assert_eq!(backlog.pop(), None);
        }
    }
}
