// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that are right but for some bytes, and requests that are hardly right at all.

use nupa_proto::process_ring::RING_SIZE;
use nupa_proto::uabi::{
    CreateCqRequest, CreateQpRequest, CreateSrqRequest, ALLOC_DM_IMPORT, ALLOC_DM_KEY,
    ALLOC_DM_MMAP_OFFSET, ALLOC_DM_REGION, ALLOC_DM_RING, EXPORT_DM, EXPORT_DM_HANDLE,
    EXPORT_DM_RING, METHOD_DM_EXPORT,
};
use rustix::io::Errno;

use crate::bytes::Bytes;
use crate::create::{modify_command, Maker, Route, RC, RC_TO_INIT, RC_TO_RTR, RC_TO_RTS, UD};
use crate::draw::Draw;
use crate::ffi::Pages;
use crate::objects::{keep, Kind};
use crate::shared::Shared;
use crate::uverbs::{
    Attribute, ALLOC_MW, ALLOC_PD, COMMANDS, CREATE_AH, CREATE_CQ, CREATE_QP, CREATE_SRQ,
    GET_CONTEXT, MODIFY_QP, OBJECT_DM, OBJECT_MR, REG_MR, REREG_MR, RESIZE_CQ,
};
use crate::world::{World, AREA_PAGES, PAGE};

/// Attributes of the driver's part of older commands.
const UHW: [u16; 2] = [0x1000, 0x1001];
/// `UVERBS_OBJECT_DEVICE`, `UVERBS_METHOD_GET_CONTEXT`: refusing a second context by this interface, the core keeps a reference to the
/// task that asked (up to 7.2 at least), so that would count as lost.
const SECOND_CONTEXT: (u16, u16) = (0, 3);
/// Commands without an answer: their bytes begin with the handle.
const SILENT: [u32; 9] = [4, 8, 13, 16, 23, MODIFY_QP, 30, 31, 33];

/// A command, its name, and how it ended.
pub(crate) fn any_command(maker: &Maker<'_>, draw: &mut Draw) -> (&'static str, Result<(), Errno>) {
    let (number, name) = draw.one_or(&COMMANDS, (GET_CONTEXT, "GET_CONTEXT"));
    let world = maker.world;
    let mut core = core_part(world, draw, number);
    let mut own = own_part(world, draw, number);
    if draw.once_in(6) {
        draw.spoil(&mut core);
    }
    match draw.small(10) {
        0 => own.extend(draw.bytes(64)),
        1 => own.resize(own.len().saturating_add(16), 0),
        2 => own.truncate(draw.below(24)),
        3 => draw.spoil(&mut own),
        _ => {}
    }
    let mut answer = world.answer(maker.thread);
    answer.room = draw.one_or(&[answer.room, answer.room, answer.room, 64, 8, 0], 0);
    if draw.once_in(12) {
        answer.address = draw.one_or(&[0, PAGE as u64, u64::MAX << 12], 0);
    }
    world.clear_answer(maker.thread);
    let answer = (!SILENT.contains(&number)).then_some(answer);
    let end = world.device.command(number, answer, &core, &own);
    if end.is_ok() {
        keep_made(maker, number);
    }
    (name, end)
}

/// Keeps what a command made.
fn keep_made(maker: &Maker<'_>, number: u32) {
    let word = |at| maker.world.answered(maker.thread, at);
    let mut objects = maker.world.objects();
    match number {
        ALLOC_PD => objects.add(Kind::Pd, word(0)),
        CREATE_CQ => objects.add(Kind::Cq, word(0)),
        CREATE_SRQ => objects.add(Kind::Srq, word(0)),
        CREATE_QP => objects.add(Kind::Qp, word(0)),
        CREATE_AH => objects.add(Kind::Ah, word(0)),
        REG_MR | ALLOC_MW => {
            objects.add(if number == REG_MR { Kind::Mr } else { Kind::Mw }, word(0));
            keep(&mut objects.keys, word(4));
        }
        _ => {}
    }
}

/// What a destroying or asking command is about.
fn kind_of(number: u32) -> Option<Kind> {
    Some(match number {
        4 => Kind::Pd,
        8 => Kind::Ah,
        13 => Kind::Mr,
        16 => Kind::Mw,
        20 | 21 | 23 | RESIZE_CQ => Kind::Cq,
        25 | 27 | 28 | 29 | 30 | 31 => Kind::Qp,
        33..=36 => Kind::Srq,
        _ => return None,
    })
}

/// The core's part of a command, right as far as there is what it names.
fn core_part(world: &World, draw: &mut Draw, number: u32) -> Vec<u8> {
    let objects = world.objects();
    let pd = objects.pick(Kind::Pd, draw);
    let [cq, other] = [0; 2].map(|_| objects.pick(Kind::Cq, draw));
    let srq = objects.pick(Kind::Srq, draw);
    let small = draw.one_or(&[1, 4, 16, 64], 1);
    let page = world.page(draw);
    let (start, bytes) = (world.address(page), PAGE as u64);
    let about = kind_of(number).map_or(0, |kind| objects.pick(kind, draw));
    let out = Bytes::new();
    match number {
        2 => out.u8s([1, 0, 0, 0, 0, 0, 0, 0]),
        CREATE_AH => {
            let gid = draw.bytes(16);
            let gid = draw.one(&world.own).map_or(gid, |(_, own)| own.to_vec());
            let out = out.u64s([1]).u32s([pd, 0]).raw(&gid).u32s([0]);
            out.u8s([draw.small_byte(8), 64, 0, 0])
                .u8s([0, 0, 0, 0, 0, 1, 1, 0])
        }
        REG_MR => out.u64s([start, bytes, start]).u32s([pd, draw.small(64)]),
        REREG_MR => {
            let (mr, what) = (objects.pick(Kind::Mr, draw), draw.small(8));
            out.u32s([mr, what])
                .u64s([start, bytes, start])
                .u32s([pd, 1])
        }
        ALLOC_MW => out.u32s([pd]).u8s([2, 0, 0, 0]),
        CREATE_CQ => {
            let channel = draw.small(32);
            let channel = draw.one_or(&[u32::MAX, u32::MAX, channel], channel);
            out.u64s([1]).u32s([small, draw.small(3), channel, 0])
        }
        CREATE_QP => {
            let kind = draw.one_or(&[RC, RC, UD, 3, 8, 9], RC);
            let shared = u8::from(draw.once_in(3));
            let out = out
                .u64s([1])
                .u32s([pd, cq, other, srq, small, small, 1, 1, 0]);
            out.u8s([draw.small_byte(2), kind, shared, 0])
        }
        MODIFY_QP => {
            let handle = objects.pick(Kind::Qp, draw);
            let (mask, state) = (draw.word() & 0x1f_ffff, draw.small_byte(8));
            let mask = draw.one_or(&[mask, 1, RC_TO_INIT, RC_TO_RTR, RC_TO_RTS], mask);
            out.raw(&modify_command(handle, state, mask, &Route::default()))
        }
        CREATE_SRQ | 39 => out.u64s([1]).u32s([pd, small, 1, 0]),
        4 | 8 | 13 | 16 => out.u32s([about]),
        30 | 31 => {
            let gid = draw.bytes(16);
            out.raw(&gid).u32s([about, 0])
        }
        28 | 29 | 33 | 36 => {
            let (one, two) = (draw.small(4), draw.lie());
            out.u32s([about, one])
                .u32s([draw.one_or(&[0, two], two), 64])
        }
        20..=27 | 34 | 35 => out.u32s([about, draw.small(3)]),
        _ => out,
    }
    .done()
}

/// log2 of a ring's entries.
fn logarithm(draw: &mut Draw) -> u8 {
    let any = draw.byte();
    draw.one_or(&[4, 6, 6, 7, 0, 12, 16, 31, 63, 255, any], 6)
}

/// The driver's part: right, or like what it expects.
fn own_part(world: &World, draw: &mut Draw, number: u32) -> Vec<u8> {
    let mut place = || {
        let page = world.page(draw);
        world.address(page)
    };
    let (mut one, mut two, mut logs, mut stride) = (place(), place(), [7, 7], 6);
    if draw.once_in(2) {
        (one, two) = (world.any_address(draw), world.any_address(draw));
        logs = [logarithm(draw), logarithm(draw)];
        stride = draw.one_or(&[5, 6, 6, 9, 4, 63, 200], stride);
    }
    let out = Bytes::new();
    match number {
        CREATE_CQ | RESIZE_CQ => out.whole(&CreateCqRequest {
            ring: one.into(),
            log_entries: logs[0],
            ..CreateCqRequest::default()
        }),
        CREATE_SRQ => out.whole(&CreateSrqRequest {
            ring: one.into(),
            log_entries: logs[0],
            log_stride: stride,
            ..CreateSrqRequest::default()
        }),
        CREATE_QP => out.whole(&CreateQpRequest {
            send_ring: one.into(),
            recv_ring: two.into(),
            log_send_blocks: logs[0],
            log_recv_entries: logs[1],
            log_recv_stride: stride,
            ..CreateQpRequest::default()
        }),
        _ => out,
    }
    .done()
}

/// A request of the newer interface: any object, any method, any attributes.
pub(crate) fn any_request(maker: &Maker<'_>, draw: &mut Draw) -> Result<(), Errno> {
    let world = maker.world;
    let answer = world.answer(maker.thread).address;
    let mut called = SECOND_CONTEXT;
    while called == SECOND_CONTEXT {
        let method = draw.small_short(10);
        let own = 0x1000u16.saturating_add(draw.small_short(2));
        called = (
            draw.small_short(22),
            draw.one_or(&[method, method, own], method),
        );
    }
    let mut attribute = |at: u16| -> Attribute {
        let own = 0x1000u16.saturating_add(draw.small_short(4));
        let number = draw.one_or(&[at, at, at, own, UHW[0], UHW[1]], at);
        let any = draw.small_short(u16::MAX);
        let length = draw.one_or(&[0, 4, 8, 8, 16, 24, 32, any], 8);
        let (place, handle) = (world.any_address(draw), u64::from(draw.small(20)));
        (
            number,
            length,
            draw.one_or(&[handle, answer, place], handle),
        )
    };
    let attributes: Vec<_> = (0..8).map(&mut attribute).collect();
    let attributes = attributes.get(..draw.below(9)).unwrap_or(&attributes);
    let driver = u32::from(draw.once_in(4));
    world
        .device
        .method(called.0, called.1, driver, attributes)
        .map(drop)
}

/// Allocates, maps, exports, imports, registers and frees device memory, of lengths and handles that may be wrong.
pub(crate) fn device_memory(maker: &Maker<'_>, draw: &mut Draw) -> Result<(), Errno> {
    let world = maker.world;
    let answer = world.answer(maker.thread).address;
    let method = |object, method, list: &[Attribute]| world.device.method(object, method, 0, list);
    let (dm, pd, qp) = {
        let objects = world.objects();
        (
            objects.pick(Kind::Dm, draw).into(),
            objects.pick(Kind::Pd, draw).into(),
            objects.pick(Kind::Qp, draw).into(),
        )
    };
    let any = draw.long();
    let ring = RING_SIZE as u64;
    let lengths = [PAGE as u64, ring, ring, 0x3000, 1, 0, 1 << 20, 1 << 40, any];
    let length = draw.one_or(&lengths, any);
    match draw.small(6) {
        0 | 1 => {
            let import = [(0, 0, 0), (1, 8, length), (2, 4, 0)];
            let mut list = import.to_vec();
            list.push((ALLOC_DM_MMAP_OFFSET, 8, answer));
            if draw.once_in(3) {
                list.push((ALLOC_DM_IMPORT, 32, world.any_address(draw)));
            }
            if draw.once_in(3) {
                list.push((ALLOC_DM_RING, 0, qp));
            }
            if draw.once_in(6) {
                list.push((ALLOC_DM_KEY, 4, draw.small(64).into()));
                list.push((ALLOC_DM_REGION, 16, answer.wrapping_add(64)));
            }
            let handle = method(OBJECT_DM, 0, &list)?;
            let offset = world.answered_long(maker.thread, 0);
            {
                let mut objects = world.objects();
                objects.add(Kind::Dm, handle);
                keep(&mut objects.offsets, offset);
            }
            world.map(offset, 1).map(drop)
        }
        2 => method(OBJECT_DM, 1, &[(0, 0, dm)]).map(drop),
        3 => {
            let list = [
                (EXPORT_DM, 0, dm),
                (EXPORT_DM_HANDLE, 32, answer),
                (EXPORT_DM_RING, 0, qp),
            ];
            let list = list.get(..draw.one_or(&[2, 3], 2)).unwrap_or(&list);
            method(OBJECT_DM, METHOD_DM_EXPORT, list).map(drop)
        }
        _ => {
            let offset = draw.one_or(&[0, 0, 8, 4096, any], 0);
            let key = answer.wrapping_add(64);
            // Access flags: local and remote, zero-based.
            let list = [
                (0, 0, 0),
                (1, 8, offset),
                (2, 8, length),
                (3, 0, pd),
                (4, 4, 0x2f),
            ];
            let mut list = list.to_vec();
            list.extend([(5, 0, dm), (6, 4, key), (7, 4, key.wrapping_add(4))]);
            let handle = method(OBJECT_MR, 0, &list)?;
            let mut objects = world.objects();
            objects.add(Kind::Mr, handle);
            keep(&mut objects.keys, world.answered(maker.thread, 64));
            Ok(())
        }
    }
}

/// Opens another context of the same process, which gets doorbell slots of the same pages, makes objects there, asks it for what is the
/// first one's, and closes it with all of that.
pub(crate) fn contexts(maker: &Maker<'_>, draw: &mut Draw) -> Result<(), Errno> {
    let world = maker.world;
    let other = world.another()?;
    let answer = world.answer(maker.thread);
    other.command(GET_CONTEXT, Some(answer), &[], &[])?;
    other.command(ALLOC_PD, Some(answer), &[], &[])?;
    for _ in 0..=draw.small(8) {
        let number = draw.one_or(
            &[CREATE_CQ, CREATE_CQ, CREATE_SRQ, CREATE_QP, REG_MR, 27, 20],
            ALLOC_PD,
        );
        let (core, own) = (
            core_part(world, draw, number),
            own_part(world, draw, number),
        );
        if other.command(number, Some(answer), &core, &own).is_ok() && number == CREATE_CQ {
            let offset = world.answered_long(maker.thread, 8);
            let _ = Pages::of_file(other.file(), offset, PAGE);
            let _ = world.map(offset, 1);
        }
    }
    Ok(())
}

/// Maps offsets of the device: known ones, those beside them, and any. What is granted is written to like the others.
pub(crate) fn maps(world: &World, draw: &mut Draw) -> Result<(), Errno> {
    let known = {
        let objects = world.objects();
        draw.one_or(&objects.offsets, 0)
    };
    let page = PAGE as u64;
    let any = draw.long() & 0xffff_ffff_f000;
    let near = page.wrapping_mul(draw.small(64).into());
    let offset = match draw.small(6) {
        0 => any,
        1 => near,
        2 => known.wrapping_add(near),
        3 => known.wrapping_sub(near) & !(page.wrapping_sub(1)),
        _ => known,
    };
    world
        .map(offset, draw.one_or(&[1, 1, 1, 2, 16, AREA_PAGES], 1))
        .map(drop)
}

/// Takes the oldest mappings away, also those that other threads write to just now: they go with the last of them.
pub(crate) fn unmaps(world: &World, draw: &mut Draw) -> Result<(), Errno> {
    let gone = {
        let mut objects = world.objects();
        let at = draw.below(objects.pages.len());
        (at < objects.pages.len()).then(|| objects.pages.swap_remove(at))
    };
    gone.map(drop).ok_or(Errno::NOENT)
}
