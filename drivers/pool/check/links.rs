// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The words of rings, and what waits in the rings.

use super::{Checker, Fault, Must, Problem, WORD};
use crate::{peer::knows_lines, place::Place, receiver::Receiver, Window};
use nupa_proto::pool::{
    message::BULK_ALIGN, Class, LinkWord, CLASSES, LINE, LINK_CONSUMER, LINK_PRODUCER, LINK_WORDS,
    SLOT_SIZE, TAG_NONE,
};

/// Bytes of the lines that the producer writes, and the consumer.
const PRODUCER_LINES: u64 = LINK_CONSUMER - LINK_PRODUCER;
const CONSUMER_LINES: u64 = LINK_WORDS - LINK_CONSUMER;

/// How often words are read anew because the ring is in motion. One that is in motion for longer works.
const ATTEMPTS: u32 = 16;

/// The words of a ring, as they stood at one time.
struct Words {
    producer: LinkWord,
    consumer: LinkWord,
    bulk: LinkWord,
}

impl<W: Window, R: FnMut(Problem)> Checker<'_, W, R> {
    /// Checks what lies between a source and a target.
    pub(super) fn link(&mut self, source: u16, target: u16) {
        let geometry = self.geometry;
        self.rings(source, target, |class| geometry.ring(source, target, class));
    }

    /// Checks the rings from a source to a target.
    pub(super) fn rings(&mut self, source: u16, target: u16, place: impl Fn(Class) -> Place) {
        let first = place(Class::Request);
        self.window.refresh(first.producer(), PRODUCER_LINES);
        self.window.refresh(first.consumer(), CONSUMER_LINES);
        let producer = self.line(first.producer(), "word of the producer", |word| word.source);
        self.line(first.consumer(), "word of the consumer", |word| word.target);
        let bulk = "bulk word of the consumer";
        self.line(first.consumer_bulk(), bulk, |word| word.target);
        self.want_line(first.producer_want(), producer);
        let in_lines = self.knows_lines(source) && self.knows_lines(target);
        for class in Class::ALL {
            let ring = place(*class);
            self.ring(&if in_lines { ring.in_lines() } else { ring });
        }
    }

    /// Whether the node that has a slot, or had it last, knows entries of lines.
    fn knows_lines(&self, node: u16) -> bool {
        let slot = self.geometry.slot(node);
        self.window.refresh(slot, SLOT_SIZE as u64);
        knows_lines(self.window, slot).unwrap_or(false)
    }

    /// Checks a line of link words; the first of them. `own` gives the tag of who writes it.
    fn line(
        &mut self,
        line: u64,
        name: &'static str,
        own: impl Fn(LinkWord) -> u16,
    ) -> Option<LinkWord> {
        let first = LinkWord::from_wire(self.load(line)?);
        for offset in (line..).step_by(WORD as usize).take(CLASSES) {
            let Some(found) = self.load(offset) else {
                continue;
            };
            let word = LinkWord::from_wire(found);
            let must = match own(word) == TAG_NONE && word.index != 0 {
                _ if !word.same_epochs(first) => {
                    Must::Read("of the same two epochs as the first word of its line")
                }
                true => Must::Read("of index 0, as it is no link, or of an epoch that is refused"),
                false => continue,
            };
            self.field(offset, name, found, must);
        }
        self.zeroes(behind(line)..line.wrapping_add(LINE));
        Some(first)
    }

    /// Checks the line of want words, each of which is 0 or as old as the producer's word.
    fn want_line(&mut self, line: u64, producer: Option<LinkWord>) {
        for offset in (line..).step_by(WORD as usize).take(CLASSES) {
            let found = self.load(offset).unwrap_or(0);
            let same = producer.is_none_or(|word| word.same_epochs(LinkWord::from_wire(found)));
            if found != 0 && !same {
                let must = Must::Read("0, or of the same two epochs as the word of the producer");
                self.field(offset, "want word", found, must);
            }
        }
        self.zeroes(behind(line)..line.wrapping_add(LINE));
    }

    /// Checks a ring that both ends have made the link of. Whether they still have it does not matter: nothing moves then.
    fn ring(&mut self, place: &Place) {
        let Some(words) = self.words(place) else {
            return;
        };
        let Words {
            producer,
            consumer,
            bulk,
        } = words;
        if !producer.same_epochs(consumer)
            || producer.source == TAG_NONE
            || producer.target == TAG_NONE
        {
            return;
        }
        if bulk.index % BULK_ALIGN != 0 {
            let must = Must::Read("a position that is a multiple of 64, in its lowest 32 bits");
            let offset = place.consumer_bulk();
            self.field(offset, "bulk word of the consumer", bulk.to_wire(), must);
        }
        // Of lines the producer's word says no more than that the ring is there.
        let waiting = producer.index.wrapping_sub(consumer.index);
        if !place.is_in_lines() && waiting > place.entries() {
            let must = Must::Read("ahead of the consumer's by no more than the ring has entries");
            let offset = place.producer();
            self.field(offset, "word of the producer", producer.to_wire(), must);
            return;
        }
        self.entries(place, &words);
    }

    /// Checks the entries that wait, and that their payloads are no more than the payload area has.
    fn entries(&mut self, place: &Place, words: &Words) {
        let mut receiver = Receiver::resume(*place, words.consumer, words.bulk.index);
        for _ in 0..place.entries() {
            let index = receiver.index();
            if !place.is_in_lines() && index == words.producer.index {
                break;
            }
            let violation = match receiver.next(self.window) {
                Ok(Some(_)) => {
                    receiver.skip();
                    continue;
                }
                Ok(None) if place.is_in_lines() => break,
                Ok(None) => return,
                Err(violation) => violation,
            };
            // Somebody works with the ring, and has freed it since.
            if self.load(place.consumer()) == Some(words.consumer.to_wire()) {
                self.problem(place.entry(index), Fault::Entry { index, violation });
            }
            return;
        }
        let used = receiver.position().wrapping_sub(words.bulk.index);
        if used > place.bulk_len() && self.load(place.consumer()) == Some(words.consumer.to_wire())
        {
            let must = Must::Read("behind which what waits in the ring fits into its payload area");
            let (offset, found) = (place.consumer_bulk(), words.bulk.to_wire());
            self.field(offset, "bulk word of the consumer", found, must);
        }
    }

    /// The words of a ring; none if they cannot be read, or the consumer moves too often.
    fn words(&mut self, place: &Place) -> Option<Words> {
        for _ in 0..ATTEMPTS {
            self.window.refresh(place.producer(), WORD);
            self.window.refresh(place.consumer(), CONSUMER_LINES);
            let consumer = self.window.load(place.consumer()).ok()?;
            let bulk = self.window.load(place.consumer_bulk()).ok()?;
            let producer = self.window.load(place.producer()).ok()?;
            self.window.refresh(place.consumer(), WORD);
            if self.window.load(place.consumer()) == Ok(consumer) {
                return Some(Words {
                    producer: LinkWord::from_wire(producer),
                    consumer: LinkWord::from_wire(consumer),
                    bulk: LinkWord::from_wire(bulk),
                });
            }
        }
        None
    }
}

/// Offset behind the words of a line.
fn behind(line: u64) -> u64 {
    line.wrapping_add(WORD.wrapping_mul(CLASSES as u64))
}
