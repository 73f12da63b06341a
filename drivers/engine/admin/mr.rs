// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation, change and destruction of memory keys.
//!
//! Regions are bound to memory here; keys for fast registration and windows are bound by requests, see [`crate::path::bind`].

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        grant::Writers,
        mr::{Backing, Kind, Mr, LOCAL_READ},
        pages::PageMap,
    },
};
use nupa_proto::{
    admin::{
        AllocKey, CreateMr, KeyKind, ModifyMr, ACCESS_ALL, MR_MASK_ACCESS, MR_MASK_PAGES,
        MR_MASK_PD,
    },
    ident::{key_index, make_key, same_key_slot, KEY_TAG_BITS, KEY_VARIANT_MASK},
    status::AdminStatus,
};

/// Where the random tag of a key begins.
const TAG_SHIFT: u32 = u32::BITS - KEY_TAG_BITS;
/// All bits of a modification's mask.
const MASK: u32 = MR_MASK_PAGES | MR_MASK_PD | MR_MASK_ACCESS;

impl Engine {
    /// Replaces pages, domain or rights of a region that no window is bound to. With other pages its key gets another
    /// variant, so that nobody uses the old one by mistake. Returns its key.
    pub fn modify_mr<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        body: &ModifyMr,
    ) -> Result<u32, AdminStatus> {
        let (node, platform) = nodes.node_mut(id).ok_or(AdminStatus::Internal)?;
        let key = node.change_mr(platform, body)?;
        self.revoke_grants(nodes, id, Writers::Await);
        Ok(key)
    }

    /// Deregisters memory, or frees a key, whatever variant of it is bound. A region that windows are bound to stays. Nobody uses
    /// the memory any more then.
    pub fn destroy_mr<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        key: u32,
    ) -> Result<(), AdminStatus> {
        let (node, _) = nodes.node_mut(id).ok_or(AdminStatus::Internal)?;
        node.remove_mr(key)?;
        self.revoke_grants(nodes, id, Writers::Await);
        Ok(())
    }
}

impl<S: Storage> Node<S> {
    /// Registers memory; returns its key, which is drawn at random but for the index part.
    pub fn create_mr(
        &mut self,
        platform: &impl Platform,
        body: &CreateMr,
    ) -> Result<u32, AdminStatus> {
        let (pd, access) = (body.pd.get(), body.access.get());
        if access & !ACCESS_ALL != 0 {
            return Err(AdminStatus::InvalidField);
        }
        self.pds.get(pd).ok_or(AdminStatus::NoSuchObject)?;
        let map = self.map_mr(platform, body)?;
        let mr = Mr {
            backing: Backing::Own(map),
            iova: body.iova.get(),
            len: body.len.get(),
            pd,
            access: access | LOCAL_READ,
            key: 0,
            kind: Kind::Memory,
            windows: 0,
        };
        self.add_mr(platform, mr)
    }

    /// Takes over where a region lies.
    fn map_mr(
        &mut self,
        platform: &impl Platform,
        body: &CreateMr,
    ) -> Result<PageMap<S::Pages>, AdminStatus> {
        let (iova, len) = (body.iova.get(), body.len.get());
        if len > self.limits().max_mr_size || iova.checked_add(len).is_none() {
            return Err(AdminStatus::InvalidField);
        }
        self.check_key_pages(body.pages.pages.get().into())?;
        let memory = platform.memory();
        self.resources.load(memory, &body.pages, iova, len, 1)
    }

    /// Allocates a key without memory.
    pub fn alloc_key(
        &mut self,
        platform: &impl Platform,
        body: &AllocKey,
    ) -> Result<u32, AdminStatus> {
        let kind = KeyKind::try_from(body.kind).map_err(|_| AdminStatus::InvalidField)?;
        let (pd, pages) = (body.pd.get(), body.max_pages.get());
        let valid = match kind {
            KeyKind::FastReg => (1..=self.limits().max_fast_reg_pages).contains(&pages),
            KeyKind::Window => pages == 0,
        };
        if !valid || body.reserved != [0; 7] {
            return Err(AdminStatus::InvalidField);
        }
        self.pds.get(pd).ok_or(AdminStatus::NoSuchObject)?;
        self.check_key_pages(pages.into())?;
        let (kind, backing) = match kind {
            KeyKind::Window => (Kind::Window, Backing::None),
            KeyKind::FastReg => {
                let pages = self.resources.take_pages(pages as usize)?;
                (Kind::FastReg, Backing::Own(PageMap::unused(pages)))
            }
        };
        let mr = Mr {
            backing,
            iova: 0,
            len: 0,
            pd,
            access: 0,
            key: 0,
            kind,
            windows: 0,
        };
        self.add_mr(platform, mr)
    }

    /// Adds a region, and gives it its key.
    fn add_mr(&mut self, platform: &impl Platform, mr: Mr<S::Pages>) -> Result<u32, AdminStatus> {
        // No tag is all ones or all zeroes, so no key is ever DMA_LKEY or a bare index.
        let random = platform.random();
        let tag = (random >> TAG_SHIFT).clamp(1, (u32::MAX >> TAG_SHIFT) - 1);
        let random = (tag << TAG_SHIFT) | (random & KEY_VARIANT_MASK);
        let (pd, pages, mut key) = (mr.pd, mr.stored_pages(), 0);
        let make = |index| {
            key = make_key(index, random);
            Mr { key, ..mr }
        };
        let added = self.mrs.insert(make);
        added.map_err(|_| AdminStatus::NoResources)?;
        self.use_pd(pd);
        self.count_pages(pages);
        Ok(key)
    }

    /// As [`Engine::modify_mr`](crate::Engine::modify_mr), as far as it concerns this node only.
    pub(crate) fn change_mr(
        &mut self,
        platform: &impl Platform,
        body: &ModifyMr,
    ) -> Result<u32, AdminStatus> {
        let (key, to) = (body.key.get(), &body.mr);
        let set = check_mask(body)?;
        let mr = self.mr_of(key).ok_or(AdminStatus::NoSuchObject)?;
        if mr.kind != Kind::Memory {
            return Err(AdminStatus::InvalidField);
        }
        if mr.windows != 0 {
            return Err(AdminStatus::Busy);
        }
        if set(MR_MASK_PD) {
            let pd = self.pds.get(to.pd.get());
            pd.ok_or(AdminStatus::NoSuchObject)?;
        }
        let map = match set(MR_MASK_PAGES) {
            true => Some(self.map_mr(platform, to)?),
            false => None,
        };
        let mr = self.mrs.get_mut(key_index(key));
        let mr = mr.ok_or(AdminStatus::Internal)?;
        let (old_pd, mut before) = (mr.pd, Backing::None);
        let stored = map.as_ref().map_or(0, PageMap::stored_pages);
        if let Some(map) = map {
            mr.key = next_variant(key);
            before = core::mem::replace(&mut mr.backing, Backing::Own(map));
            (mr.iova, mr.len) = (to.iova.get(), to.len.get());
        }
        if set(MR_MASK_PD) {
            mr.pd = to.pd.get();
        }
        if set(MR_MASK_ACCESS) {
            mr.access = to.access.get() | LOCAL_READ;
        }
        let (key, pd) = (mr.key, mr.pd);
        self.use_pd(pd);
        self.release_pd(old_pd);
        self.count_pages(stored);
        if let Backing::Own(map) = before {
            self.retire_pages(map);
        }
        Ok(key)
    }

    /// As [`Engine::destroy_mr`](crate::Engine::destroy_mr), as far as it concerns this node only.
    pub(crate) fn remove_mr(&mut self, key: u32) -> Result<(), AdminStatus> {
        let mr = self
            .mrs
            .get(key_index(key))
            .filter(|mr| mr.key == key || (mr.kind != Kind::Memory && same_key_slot(mr.key, key)));
        let mr = mr.ok_or(AdminStatus::NoSuchObject)?;
        if mr.windows != 0 {
            return Err(AdminStatus::Busy);
        }
        let index = key_index(key);
        self.unbind(index);
        let mr = self.mrs.remove(index).ok_or(AdminStatus::Internal)?;
        self.release_pd(mr.pd);
        if let Backing::Own(map) = mr.backing {
            self.retire_pages(map);
        }
        Ok(())
    }

    /// The region that has this key.
    pub(crate) fn mr_of(&self, key: u32) -> Option<&Mr<S::Pages>> {
        let mr = self.mrs.get(key_index(key))?;
        (mr.key == key).then_some(mr)
    }
}

/// The key with the next variant.
const fn next_variant(key: u32) -> u32 {
    (key & !KEY_VARIANT_MASK) | (key.wrapping_add(1) & KEY_VARIANT_MASK)
}

/// Checks a modification's mask and rights, and that what the mask does not name is zero. Returns what tells whether a bit
/// of the mask is set.
fn check_mask(body: &ModifyMr) -> Result<impl Fn(u32) -> bool, AdminStatus> {
    let (mask, to) = (body.mask.get(), &body.mr);
    let set = move |bit| mask & bit != 0;
    let pages = [to.pages.addr.get(), to.iova.get(), to.len.get()];
    let shape = to.pages.pages.get() | u32::from(to.pages.page_shift | to.pages.levels);
    let valid = mask & !MASK == 0
        && mask != 0
        && to.access.get() & !ACCESS_ALL == 0
        && (set(MR_MASK_PAGES) || (pages == [0; 3] && shape == 0))
        && (set(MR_MASK_PD) || to.pd.get() == 0)
        && (set(MR_MASK_ACCESS) || to.access.get() == 0);
    valid.then_some(set).ok_or(AdminStatus::InvalidField)
}
