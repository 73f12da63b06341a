// SPDX-License-Identifier: GPL-2.0
//! Generic netlink: a family whose dumps list the objects of a module, whose commands change them, and whose notifications tell what
//! happens to them.
//!
//! C header: `include/net/genetlink.h`. A module calls [`prepare`] first. A [`Family`] is registered for as long as a [`Registration`]
//! lives, the last thing that the module's `init` makes: nothing waits for dumps of a module that could not be loaded. What dumps
//! list comes from [`Source`]s, which come and go meanwhile ([`publish`]). Callbacks run in the process that reads the dump or gives the
//! command, and may sleep. [`notify`] sends to the listeners of the family's multicast group.

mod doit;

pub use self::doit::{DoAttribute, DoCommand, DoRequest, SOURCE};

use self::doit::DoCommands;
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::to_result,
    ffi::{self, c_int},
    global_lock, new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Release},
        Arc, Mutex,
    },
    types::Opaque,
    ThisModule,
};

global_lock! {
    // SAFETY: It is locked only if `READY` says that it is initialised.
    unsafe(uninit) static SOURCES: Mutex<Sources> = Sources::new();
}

/// [`NOT_READY`], [`BEGUN`] or [`READY`]: how far `SOURCES` is.
static STAGE: Atomic<u32> = Atomic::new(NOT_READY);
const NOT_READY: u32 = 0;
const BEGUN: u32 = 1;
const READY: u32 = 2;

/// Makes this module fit for sources and a family. Once, before all else.
pub fn prepare() {
    if STAGE.cmpxchg(NOT_READY, BEGUN, Full).is_err() {
        return;
    }
    // SAFETY: Once, because `STAGE` is never `NOT_READY` again.
    unsafe { SOURCES.init() };
    STAGE.store(READY, Release);
}

/// What is listed.
struct Sources {
    next: u32,
    entries: KVec<Arc<Entry>>,
    family: Option<FamilyPointer>,
    /// `netlink_callback::seq` of dumps. Goes up whenever what is listed changes; never 0, which netlink takes for none.
    seq: u32,
}

/// A source that is listed.
#[pin_data]
struct Entry {
    number: u32,
    /// `None` once it is listed no more. Dumps and commands ask it under this lock.
    #[pin]
    source: Mutex<Option<Arc<dyn Source>>>,
}

/// The family, while it is registered.
#[derive(Clone, Copy)]
struct FamilyPointer(*mut bindings::genl_family);

// SAFETY: It is only passed to functions of generic netlink, which may be called from any thread.
unsafe impl Send for FamilyPointer {}

impl Sources {
    const fn new() -> Self {
        Self {
            next: 0,
            entries: KVec::new(),
            family: None,
            seq: 1,
        }
    }

    /// The first source whose number is this or above.
    fn at(&self, number: u32) -> Option<Arc<Entry>> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.number >= number).cloned()
    }

    fn change(&mut self) {
        self.seq = self.seq.wrapping_add(1).max(1);
    }
}

/// Something whose objects are listed.
pub trait Source: Send + Sync {
    /// Writes the object at `position`, or the next one behind it, of those that `command` lists. Returns the position behind it; `None` if
    /// there is none. `index` is the source's number. May sleep.
    fn dump(
        &self,
        command: u8,
        index: u32,
        position: u32,
        message: &mut Message<'_>,
    ) -> Result<Option<u32>>;

    /// Does what a request says, and notes and tells the change. `index` is the source's number. May sleep.
    fn doit(&self, index: u32, request: &DoRequest<'_>) -> Result;
}

/// A source that is listed until this is dropped, which waits for dumps that are asking it for an object, and for commands, and sleeps.
pub struct Published(Arc<Entry>);

/// Lists the objects of a source, whose number is above those of all before it. `EINVAL` before [`prepare`]. Sleeps.
pub fn publish(source: Arc<dyn Source>) -> Result<Published> {
    if STAGE.load(Acquire) != READY {
        return Err(EINVAL);
    }
    let mut sources = SOURCES.lock();
    let number = sources.next;
    let next = number.checked_add(1).ok_or(ENOSPC)?;
    let entry = Arc::pin_init(
        pin_init!(Entry { number, source <- new_mutex!(Some(source)) }),
        GFP_KERNEL,
    )?;
    sources.entries.push(entry.clone(), GFP_KERNEL)?;
    sources.next = next;
    sources.change();
    Ok(Published(entry))
}

/// Notes that the objects of a source have changed: a dump that goes on meanwhile is marked as interrupted, and its reader asks again.
/// Sleeps.
pub fn note_change() {
    if STAGE.load(Acquire) == READY {
        SOURCES.lock().change();
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let mut sources = SOURCES.lock();
        sources
            .entries
            .retain(|entry| entry.number != self.0.number);
        if sources.entries.is_empty() {
            // Nobody drops what is static, when the module goes.
            sources.entries = KVec::new();
        }
        sources.change();
        drop(sources);
        let source = self.0.source.lock().take();
        drop(source);
    }
}

impl Published {
    /// The source's number.
    pub fn index(&self) -> u32 {
        self.0.number
    }
}

/// Sends a notification, which `write` adds attributes to, to whoever has joined the group. It is lost for those whose sockets
/// are full, who are told so by netlink (`ENOBUFS`). Does nothing without a [`Registration`]. Sleeps; `write` must not
/// publish, note a change, or drop what is published.
pub fn notify(command: u8, write: impl FnOnce(&mut Message<'_>) -> Result) -> Result {
    if STAGE.load(Acquire) != READY {
        return Ok(());
    }
    let sources = SOURCES.lock();
    let Some(FamilyPointer(family)) = sources.family else {
        return Ok(());
    };
    let mut header = core::ptr::null_mut();
    // SAFETY: The family is registered, because the lock is held.
    let skb = unsafe { bindings::nk_genl_new(family, command, &mut header) };
    if skb.is_null() {
        return Err(ENOMEM);
    }
    // SAFETY: The header was begun, and `skb` is sent or freed below.
    let mut message = unsafe { Message::new(skb) };
    if let Err(error) = write(&mut message) {
        // SAFETY: It is ours, and was not sent.
        unsafe { bindings::nk_genl_free(skb) };
        return Err(error);
    }
    // SAFETY: As above; `skb` is ours until here.
    unsafe { bindings::nk_genl_multicast(family, skb, header) };
    Ok(())
}

/// What a family is.
pub struct Family {
    /// Name, less than `GENL_NAMSIZ` bytes.
    pub name: &'static CStr,
    /// Version.
    pub version: u8,
    /// Commands that are dumps. They take no attributes.
    pub dumps: &'static [u8],
    /// Those that are only for processes with `CAP_NET_ADMIN`.
    pub admin_dumps: &'static [u8],
    /// Commands that change something.
    pub commands: &'static [DoCommand],
    /// Name of the multicast group that [`notify`] sends to, less than `GENL_NAMSIZ` bytes.
    pub group: &'static CStr,
}

/// A family that is registered until this is dropped. There can be one.
pub struct Registration {
    family: Pin<KBox<Opaque<bindings::genl_family>>>,
    _operations: KVec<bindings::genl_small_ops>,
    _commands: DoCommands,
    _group: KBox<bindings::genl_multicast_group>,
}

// SAFETY: Nothing is done with it but to unregister it, from any thread.
unsafe impl Send for Registration {}
// SAFETY: There are no methods.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers a family. `EBUSY` if there is one, `EINVAL` before [`prepare`]. Sleeps.
    pub fn new(family: &Family, module: &'static ThisModule) -> Result<Self> {
        if STAGE.load(Acquire) != READY {
            return Err(EINVAL);
        }
        let admin = bindings::nk_const_NK_GENL_ADMIN_PERM as u8;
        let dumps = family.dumps.iter().map(|command| (command, 0));
        let admin_dumps = family.admin_dumps.iter().map(|command| (command, admin));
        let mut operations = KVec::new();
        for (command, flags) in Iterator::chain(dumps, admin_dumps) {
            let operation = bindings::genl_small_ops {
                dumpit: Some(dump),
                cmd: *command,
                flags,
                ..Default::default()
            };
            operations.push(operation, GFP_KERNEL)?;
        }
        let commands = DoCommands::new(family)?;
        let mut group = KBox::new(bindings::genl_multicast_group::default(), GFP_KERNEL)?;
        write_name(&mut group.name, family.group)?;
        let mut inner = bindings::genl_family {
            version: family.version.into(),
            small_ops: operations.as_ptr(),
            n_small_ops: u8::try_from(operations.len())?,
            ops: commands.operations.as_ptr(),
            n_ops: u8::try_from(commands.operations.len())?,
            mcgrps: &*group,
            n_mcgrps: 1,
            module: module.as_ptr().cast(),
            ..Default::default()
        };
        // Sources sleep, and other families have nothing to do with that.
        inner.set_parallel_ops(1);
        write_name(&mut inner.name, family.name)?;
        let family = KBox::pin(Opaque::new(inner), GFP_KERNEL)?;
        if SOURCES.lock().family.is_some() {
            return Err(EBUSY);
        }
        // SAFETY: The family, and what it refers to, stay where they are until `drop` unregisters it.
        to_result(unsafe { bindings::genl_register_family(family.get()) })?;
        SOURCES.lock().family = Some(FamilyPointer(family.get()));
        Ok(Self {
            family,
            _operations: operations,
            _commands: commands,
            _group: group,
        })
    }
}

/// Writes a name to where the kernel looks for it. `EINVAL` if it is too long.
fn write_name(place: &mut [ffi::c_char], name: &CStr) -> Result {
    let name = name.to_bytes_with_nul();
    let place = place.get_mut(..name.len()).ok_or(EINVAL)?;
    for (to, from) in place.iter_mut().zip(name) {
        *to = *from as ffi::c_char;
    }
    Ok(())
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Whoever notifies holds the lock.
        SOURCES.lock().family = None;
        // SAFETY: `new` registered it.
        unsafe { bindings::genl_unregister_family(self.family.get()) };
    }
}

/// One object of a dump, or a notification, which attributes are added to.
///
/// # Invariants
///
/// `skb` is the dump's or the notification's, with a header that was begun, for `'part`.
pub struct Message<'part> {
    skb: *mut bindings::sk_buff,
    // Invariant, so that a source cannot put one in the place of another.
    part: PhantomData<fn(&'part ()) -> &'part ()>,
}

impl Message<'_> {
    /// # Safety
    ///
    /// A header was begun in `skb`, which stays for as long as the message.
    unsafe fn new(skb: *mut bindings::sk_buff) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            skb,
            part: PhantomData,
        }
    }

    /// Adds an attribute of these bytes. `EMSGSIZE` if there is no room: then nothing of the object is sent, but first in the next part of the dump.
    pub fn put(&mut self, attribute: u16, bytes: &[u8]) -> Result {
        let len = c_int::try_from(bytes.len())?;
        // SAFETY: By the type's invariant; `bytes` are that many.
        to_result(unsafe {
            bindings::nla_put(self.skb, attribute.into(), len, bytes.as_ptr().cast())
        })
    }

    /// Adds a `u8`.
    pub fn put_u8(&mut self, attribute: u16, value: u8) -> Result {
        self.put(attribute, &[value])
    }

    /// Adds a `u16`.
    pub fn put_u16(&mut self, attribute: u16, value: u16) -> Result {
        self.put(attribute, &value.to_ne_bytes())
    }

    /// Adds a `u32`.
    pub fn put_u32(&mut self, attribute: u16, value: u32) -> Result {
        self.put(attribute, &value.to_ne_bytes())
    }

    /// Adds a `u64`.
    pub fn put_u64(&mut self, attribute: u16, value: u64) -> Result {
        self.put(attribute, &value.to_ne_bytes())
    }

    /// Adds a string.
    pub fn put_str(&mut self, attribute: u16, value: &CStr) -> Result {
        self.put(attribute, value.to_bytes_with_nul())
    }
}

/// Where a dump goes on: source, and position in it.
type Place = [u32; 2];

/// Adds objects to a part of a dump until it is full. `genl_small_ops::dumpit`
///
/// # Safety
///
/// `skb` is the part, and `callback` that of a dump of the family's, as generic netlink passes them.
unsafe extern "C" fn dump(
    skb: *mut bindings::sk_buff,
    callback: *mut bindings::netlink_callback,
) -> c_int {
    // SAFETY: netlink calls this with a valid callback, whose context is the dump's own: zeroed before the first call, 8 bytes at least,
    // and aligned for words.
    let (command, place) = unsafe {
        (
            bindings::nk_genl_command(callback),
            &mut *bindings::nk_genl_context(callback).cast::<Place>(),
        )
    };
    loop {
        // SAFETY: As above; `skb` is the part's.
        let header = unsafe { bindings::nk_genl_begin(skb, callback) };
        if header.is_null() {
            return more(skb);
        }
        // SAFETY: The header was begun, and is ended below.
        let mut message = unsafe { Message::new(skb) };
        let written = dump_next(command, place, &mut message);
        let seq = SOURCES.lock().seq;
        // SAFETY: The callback is the dump's.
        unsafe { bindings::nk_genl_set_seq(callback, seq) };
        match written {
            Ok(true) => {
                // SAFETY: The header was begun in this skb, and the callback is the dump's.
                unsafe { bindings::nk_genl_end(skb, callback, header) };
                continue;
            }
            // SAFETY: As above.
            Ok(false) | Err(_) => unsafe { bindings::nk_genl_cancel(skb, header) },
        }
        return match written {
            Err(EMSGSIZE) => more(skb),
            Err(error) => error.to_errno(),
            Ok(_) => 0,
        };
    }
}

/// What says that a part is full, and that there is more: its length. One object that has no room in an empty one will never have.
fn more(skb: *mut bindings::sk_buff) -> c_int {
    // SAFETY: `dump` calls this with the part, which is valid.
    match c_int::try_from(unsafe { (*skb).len }) {
        Ok(0) | Err(_) => EMSGSIZE.to_errno(),
        Ok(len) => len,
    }
}

/// Writes the next object of a dump, if there is one.
fn dump_next(command: u8, place: &mut Place, message: &mut Message<'_>) -> Result<bool> {
    loop {
        let [source, position] = *place;
        // It may take long, and others may come and go meanwhile.
        let Some(entry) = SOURCES.lock().at(source) else {
            return Ok(false);
        };
        let number = entry.number;
        let position = if number == source { position } else { 0 };
        let next = match &*entry.source.lock() {
            Some(source) => source.dump(command, number, position, message)?,
            None => None,
        };
        match next {
            Some(next) => {
                *place = [number, next];
                return Ok(true);
            }
            None => *place = [number.checked_add(1).ok_or(EOVERFLOW)?, 0],
        }
    }
}
