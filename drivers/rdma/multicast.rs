// SPDX-License-Identifier: GPL-2.0
//! Multicast groups that queue pairs are in.
//!
//! What the RDMA core was told is kept here, so that a pair whose controller was lost can still leave its groups, and be destroyed.

use crate::{device::Rdma, qp::Qp};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::user::{charged_user, may_exceed_limits, user_limit};
use nk_rdma::{error::unsupported, Device};
use nupa_fabric::Charge;
use nupa_proto::{admin::MAX_GROUP_MEMBERS, regs::CAP_MULTICAST};

/// Queue pairs that one user may have in a group: half, so that nobody can keep all others out.
const USER_PLACES: u32 = MAX_GROUP_MEMBERS / 2;

/// A group that a queue pair is in.
pub(crate) struct Membership {
    group: [u8; 16],
    _place: Option<Place>,
    _charge: Charge,
}

/// How many queue pairs users have in each group.
#[pin_data]
pub(crate) struct GroupPlaces {
    #[pin]
    held: Mutex<KVec<Held>>,
}

/// What a user has of a group.
struct Held {
    group: [u8; 16],
    user: u32,
    count: u32,
}

impl Held {
    fn is(&self, group: &[u8; 16], user: u32) -> bool {
        self.group == *group && self.user == user
    }
}

/// A place in a group that counts for a user until this is dropped, which may sleep.
struct Place {
    places: Arc<GroupPlaces>,
    group: [u8; 16],
    user: u32,
}

impl GroupPlaces {
    /// Nobody is in a group so far. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let places = pin_init!(Self {
            held <- new_mutex!(KVec::new()),
        });
        Arc::pin_init(places, GFP_KERNEL)
    }

    /// Counts a place for the user of the calling process. `EDQUOT` if the user has its part of the group. May sleep.
    fn take(self: &Arc<Self>, group: &[u8; 16]) -> Result<Place> {
        let user = charged_user();
        let mut held = self.held.lock();
        match held.iter_mut().find(|held| held.is(group, user)) {
            Some(own) if own.count >= USER_PLACES && !may_exceed_limits() => {
                return Err(user_limit())
            }
            Some(own) => own.count = own.count.saturating_add(1),
            None => {
                let (group, count) = (*group, 1);
                held.push(Held { group, user, count }, GFP_KERNEL_ACCOUNT)?;
            }
        }
        Ok(Place {
            places: self.clone(),
            group: *group,
            user,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.held.lock();
        let own = held.iter().position(|held| held.is(&self.group, self.user));
        let Some((place, own)) = own.and_then(|place| Some((place, held.get_mut(place)?))) else {
            return;
        };
        own.count = own.count.saturating_sub(1);
        if own.count == 0 {
            let _ = held.remove(place);
        }
    }
}

impl Qp {
    /// Attaches the pair to a group. `EINVAL` if it is in it already, since the core counts each success and detaches as often;
    /// `EOPNOTSUPP` if the controller knows no groups, `EDQUOT` and `ENOSPC` as of other objects. Sleeps.
    pub(crate) fn attach(&self, dev: &Device<Rdma>, group: &[u8; 16]) -> Result {
        if dev.port().info().caps & CAP_MULTICAST == 0 {
            return Err(unsupported());
        }
        let mut state = self.state.lock();
        if state.groups.iter().any(|known| known.group == *group) {
            return Err(EINVAL);
        }
        let attachments = &dev.limits().attachments;
        let (charge, place) = match self.kernel {
            Some(_) => (attachments.charge_kernel(), None),
            None => {
                let place = dev.limits().group_places.take(group)?;
                (attachments.charge_user()?, Some(place))
            }
        };
        state.groups.reserve(1, GFP_KERNEL_ACCOUNT)?;
        self.object.attach(group)?;
        let membership = Membership {
            group: *group,
            _place: place,
            _charge: charge,
        };
        state.groups.push(membership, GFP_KERNEL_ACCOUNT)?;
        Ok(())
    }

    /// Detaches the pair from a group. `EINVAL` if it is not attached. Sleeps.
    pub(crate) fn detach(&self, group: &[u8; 16]) -> Result {
        let mut state = self.state.lock();
        let groups = &mut state.groups;
        let place = groups.iter().position(|known| known.group == *group);
        let membership = groups.remove(place.ok_or(EINVAL)?).map_err(|_| EINVAL)?;
        // An error means that the controller was lost, and its groups with it.
        let _ = self.object.detach(group);
        drop(membership);
        Ok(())
    }
}
