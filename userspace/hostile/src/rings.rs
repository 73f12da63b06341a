// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a process writes without asking anybody: rings, doorbell slots, push slots, trapped pages, device memory.

use nupa_proto::doorbell::{
    PAGE_SIZE, PUSH_OFFSET, PUSH_SLOTS, PUSH_SLOT_SIZE, SLOT_ARM, SLOT_EVENT, SLOT_INDEX, SLOT_SIZE,
};
use nupa_proto::wqe::BLOCK_SIZE;
use rustix::io::Errno;

use crate::create::RC;
use crate::descriptor::Scene;
use crate::draw::Draw;
use crate::objects::{Queue, Use};
use crate::shared::Shared;
use crate::uverbs::{OBJECT_CQ, OBJECT_QP, OBJECT_SRQ};
use crate::world::World;
use nupa_proto::uabi::{
    CQ_POLL_HANDLE, KICK_EVENT, KICK_PEER, KICK_RECV, KICK_SEND, METHOD_CQ_POLL, METHOD_QP_KICK,
    METHOD_SRQ_KICK, QP_KICK_HANDLE, QP_KICK_QUEUES, SRQ_KICK_HANDLE,
};

/// Changes some words where rings are, or anywhere else in memory that a controller works with.
pub(crate) fn ring_words(world: &impl Shared, draw: &mut Draw) -> Result<(), Errno> {
    let queue = any_queue(world, draw, |_| true);
    let area = world.area().bytes();
    let start = match queue {
        Some(queue) if !draw.once_in(4) => queue.place(draw.word()),
        _ => draw.below(area),
    };
    for word in 0..=draw.below(16) {
        let at = start.saturating_add(word.saturating_mul(4));
        world.area().store(at, draw.lie());
    }
    Ok(())
}

/// Gives a page back that a controller has pinned, or part of a ring.
pub(crate) fn forget_memory(world: &World, draw: &mut Draw) -> Result<(), Errno> {
    let page = world.page(draw);
    world.area.forget(page)
}

/// Posts descriptors to a queue and rings.
pub(crate) fn descriptors(world: &impl Shared, draw: &mut Draw) -> Result<(), Errno> {
    let posts = |queue: &Queue| queue.purpose != Use::Completions;
    let queue = any_queue(world, draw, posts).ok_or(Errno::NOENT)?;
    let slot = usize::from(queue.slot).saturating_mul(SLOT_SIZE);
    let mut index = queue.doorbell.load(slot.saturating_add(SLOT_INDEX));
    for _ in 0..=draw.small(3) {
        let bytes = descriptor(world, draw, &queue);
        for block in bytes.chunks(BLOCK_SIZE) {
            world.area().write(queue.place(index), block);
            index = index.wrapping_add(1);
        }
    }
    queue.doorbell.store(slot.saturating_add(SLOT_INDEX), index);
    match draw.small(3) {
        0 => Ok(()),
        1 => world.kick(draw, &queue),
        _ => {
            world.trap(&queue, slot, index);
            Ok(())
        }
    }
}

/// A descriptor for a queue, one in four with wrong bytes.
fn descriptor(world: &impl Shared, draw: &mut Draw, queue: &Queue) -> Vec<u8> {
    let objects = world.objects();
    let scene = Scene {
        world,
        objects: &objects,
    };
    let pair = objects
        .pairs
        .iter()
        .find(|pair| pair.handle == queue.handle);
    let mut bytes = match queue.purpose {
        Use::Send => scene.send(draw, pair.map_or(RC, |pair| pair.kind)),
        _ => scene.receive(draw),
    };
    if draw.once_in(4) {
        draw.spoil(&mut bytes);
    }
    bytes
}

/// Changes words of doorbell slots: those of the worker's queues, or any of the page.
pub(crate) fn doorbells(world: &impl Shared, draw: &mut Draw) -> Result<(), Errno> {
    let queue = any_queue(world, draw, |_| true).ok_or(Errno::NOENT)?;
    let slot = match draw.once_in(8) {
        true => draw.below(PAGE_SIZE.div_ceil(SLOT_SIZE)),
        false => usize::from(queue.slot),
    };
    let slot = slot.saturating_mul(SLOT_SIZE);
    let field = draw.one_or(
        &[SLOT_INDEX, SLOT_INDEX, SLOT_INDEX, SLOT_ARM, SLOT_EVENT, 12],
        0,
    );
    let place = slot.saturating_add(field);
    let old = queue.doorbell.load(place);
    let any = draw.lie();
    let value = match draw.small(6) {
        0 => any,
        1 => old.wrapping_sub(draw.small(130)),
        2 => queue.doorbell.load(slot.saturating_add(SLOT_EVENT)),
        _ => old.wrapping_add(draw.small(70)),
    };
    queue.doorbell.store(place, value);
    Ok(())
}

/// Fills push slots, with descriptors or with anything, and moves the index on.
pub(crate) fn push_slots(world: &impl Shared, draw: &mut Draw) -> Result<(), Errno> {
    let sends = |queue: &Queue| queue.purpose == Use::Send;
    let queue = any_queue(world, draw, sends).ok_or(Errno::NOENT)?;
    let slot = match draw.once_in(4) {
        true => draw.below(PUSH_SLOTS.into()),
        false => usize::from(queue.slot),
    };
    let bytes = match draw.once_in(3) {
        true => draw.bytes(PUSH_SLOT_SIZE),
        false => descriptor(world, draw, &queue),
    };
    let place = slot
        .saturating_mul(PUSH_SLOT_SIZE)
        .saturating_add(PUSH_OFFSET);
    let block = bytes.get(..PUSH_SLOT_SIZE).unwrap_or(&bytes);
    queue.doorbell.write(place, block);
    let index = usize::from(queue.slot).saturating_mul(SLOT_SIZE);
    let next = queue.doorbell.load(index).wrapping_add(draw.small(3));
    queue.doorbell.store(index, next);
    world.trap(&queue, index, next);
    Ok(())
}

/// Stores to trapped pages: kicks of own queues, and of what is not there.
pub(crate) fn kicks(world: &impl Shared, draw: &mut Draw) -> Result<(), Errno> {
    let queue = any_queue(world, draw, |_| true).ok_or(Errno::NOENT)?;
    let slot = draw.small_short(256);
    let slot = draw.one_or(&[queue.slot, queue.slot, slot], slot);
    let index = queue
        .doorbell
        .load(usize::from(slot).saturating_mul(SLOT_SIZE));
    let value = draw.lie();
    let at = usize::from(slot).saturating_mul(SLOT_SIZE);
    world.trap(&queue, at, draw.one_or(&[index, value], value));
    if draw.once_in(4) {
        world.trap(&queue, draw.below(PAGE_SIZE), value);
    }
    Ok(())
}

/// Kicks and polls by methods of the driver's own.
pub(crate) fn kick_methods(world: &World, draw: &mut Draw) -> Result<(), Errno> {
    let queue = any_queue(world, draw, |_| true).ok_or(Errno::NOENT)?;
    kick_command(world, draw, &queue)
}

pub(crate) fn kick_command(world: &World, draw: &mut Draw, queue: &Queue) -> Result<(), Errno> {
    let any = draw.small(40);
    let handle = u64::from(if draw.once_in(8) { any } else { queue.handle });
    let wanted = match queue.purpose {
        Use::Send => KICK_SEND,
        _ => KICK_RECV,
    };
    let lie = draw.lie();
    let some = [wanted, wanted, wanted, KICK_PEER, KICK_EVENT, 3, lie];
    let wanted = u64::from(draw.one_or(&some, wanted));
    let kick = [(QP_KICK_HANDLE, 0, handle), (QP_KICK_QUEUES, 4, wanted)];
    let (object, method, attributes) = match (queue.purpose, queue.shared) {
        (Use::Completions, _) => (
            OBJECT_CQ,
            METHOD_CQ_POLL,
            &[(CQ_POLL_HANDLE, 0, handle)][..],
        ),
        (_, true) => (
            OBJECT_SRQ,
            METHOD_SRQ_KICK,
            &[(SRQ_KICK_HANDLE, 0, handle)][..],
        ),
        _ => (OBJECT_QP, METHOD_QP_KICK, &kick[..]),
    };
    world.device.method(object, method, 0, attributes).map(drop)
}

/// Changes words of any mapping of the device.
pub(crate) fn mapped_words(world: &World, draw: &mut Draw) -> Result<(), Errno> {
    let pages = {
        let objects = world.objects();
        let at = draw.below(objects.pages.len());
        objects.pages.get(at).cloned().ok_or(Errno::NOENT)?
    };
    for _ in 0..=draw.below(16) {
        pages.store(draw.below(pages.bytes()), draw.lie());
    }
    Ok(())
}

fn any_queue(
    world: &impl Shared,
    draw: &mut Draw,
    wanted: impl Fn(&Queue) -> bool,
) -> Option<Queue> {
    let objects = world.objects();
    let queues = objects.queues.iter().filter(|queue| wanted(queue));
    let count = queues.clone().count();
    queues.clone().nth(draw.below(count)).cloned()
}
