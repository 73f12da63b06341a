// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hosts of nodes: one for all, or one each with links between them.

use crate::{
    link::{link, RigLink},
    machine::Machine,
    mode::Mode,
    pool::{self, Members},
    shared::Shared,
};
use nupa_engine::{
    hal::{Clock as _, VecStorage},
    Engine, MappedGrant, NoLink, Node, NodeTable, Peer,
};
use nupa_proto::{
    admin::{ModifyMr, ModifyQp},
    status::AdminStatus,
};
use std::{ops::Range, rc::Rc};

/// What `hosts` hosts share.
pub(crate) fn shared(mode: Mode, hosts: u16) -> Rc<Shared> {
    let size = if mode.is_pooled() {
        pool::size(hosts)
    } else {
        0
    };
    let caches = if mode.is_coherent() { 0 } else { hosts };
    Shared::new(size, usize::from(caches))
}

/// One host's nodes, and its links.
pub struct HostNodes {
    all: Vec<Option<(Node<VecStorage>, Machine)>>,
    pub peers: Vec<Option<Peer<RigLink>>>,
    /// Bytes that one call copied or wrote back at most.
    most: usize,
}

impl NodeTable for HostNodes {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = RigLink;

    #[inline]
    fn max_nodes(&self) -> u16 {
        self.all.len() as u16
    }

    fn homes(&self) -> Range<u16> {
        let first = self.all.iter().position(Option::is_some).unwrap_or(0);
        let behind = self.all.iter().rposition(Option::is_some);
        first as u16..behind.map_or(0, |last| last as u16 + 1)
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        let (node, machine) = self.all.get(usize::from(id))?.as_ref()?;
        Some((node, machine))
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        let (node, machine) = self.all.get_mut(usize::from(id))?.as_mut()?;
        Some((node, machine))
    }

    #[inline]
    fn peer_mut(&mut self, id: u16) -> Option<&mut Peer<RigLink>> {
        self.peers.get_mut(usize::from(id))?.as_mut()
    }
}

/// The nodes of the only host there is: nothing is compiled for links.
pub struct LocalNodes(pub HostNodes);

impl NodeTable for LocalNodes {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = NoLink;

    #[inline]
    fn max_nodes(&self) -> u16 {
        self.0.max_nodes()
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        self.0.node(id)
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        self.0.node_mut(id)
    }
}

impl HostNodes {
    /// Calls `f`, and notes how much it copies out of nodes of this host, or writes back there.
    pub(crate) fn counted<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        // Nobody calls an engine while something may still be stored.
        for (_, machine) in self.all.iter().flatten() {
            machine.ram().settle();
        }
        let before = self.moved();
        let result = f(self);
        for (_, machine) in self.all.iter().flatten() {
            machine.ram().settle_soon();
        }
        self.most = self.most.max(self.moved() - before);
        result
    }

    /// Bytes that were copied out of nodes of this host so far, or written back there.
    fn moved(&self) -> usize {
        let moved = |(_, machine): &(Node<VecStorage>, Machine)| {
            machine.ram().copied() + machine.ram().written_back()
        };
        self.all.iter().flatten().map(moved).sum()
    }

    /// Bytes that one call to the engine copied or wrote back at most since this was last asked.
    pub fn take_most_moved(&mut self) -> usize {
        std::mem::take(&mut self.most)
    }

    /// Does what is due. Returns whether something was taken off links or put there, and when to come again.
    pub fn run(&mut self, engine: &mut Engine) -> (bool, Option<u64>) {
        // Hosts of a pool look at the clock when a turn begins, and no more.
        let begun = self.homes().start;
        let begun = self.node(begun).map(|(_, machine)| machine.now_us());
        let linked = self.peers.iter().any(Option::is_some);
        let mut found = engine.receive(self);
        let next = engine.run_at(self, begun.filter(|_| linked));
        for peer in self.peers.iter_mut().flatten() {
            found |= peer.link_mut().publish().any;
        }
        (found, next)
    }
}

/// All nodes' hardware and controllers, wherever they are.
pub struct Nodes {
    pub hosts: Vec<HostNodes>,
    mode: Mode,
    shared: Rc<Shared>,
}

impl Nodes {
    pub fn new(mode: Mode, nodes: Vec<(Node<VecStorage>, Machine)>, shared: &Rc<Shared>) -> Self {
        let count = nodes.len();
        let nothing = || HostNodes {
            all: (0..count).map(|_| None).collect(),
            peers: (0..count).map(|_| None).collect(),
            most: 0,
        };
        if !mode.is_linked() {
            let all = nodes.into_iter().map(Some).collect();
            let host = HostNodes { all, ..nothing() };
            return Self {
                hosts: vec![host],
                mode,
                shared: Rc::clone(shared),
            };
        }
        let mut hosts: Vec<HostNodes> = nodes.iter().map(|_| nothing()).collect();
        for (id, node) in nodes.into_iter().enumerate() {
            hosts[id].all[id] = Some(node);
            for other in (0..id).filter(|_| !mode.is_pooled()) {
                let [here, there] = link(shared).map(RigLink::Queues);
                hosts[id].peers[other] = Some(Peer::new(id as u16, here));
                hosts[other].peers[id] = Some(Peer::new(other as u16, there));
            }
        }
        Self {
            hosts,
            mode,
            shared: Rc::clone(shared),
        }
    }

    /// The host that a node is on.
    pub fn host_of(&self, id: u16) -> usize {
        match self.hosts.len() {
            1 => 0,
            _ => usize::from(id),
        }
    }

    pub fn ids(&self) -> std::ops::Range<u16> {
        0..self.max_nodes()
    }
}

impl NodeTable for Nodes {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = NoLink;

    #[inline]
    fn max_nodes(&self) -> u16 {
        self.hosts[0].max_nodes()
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        self.hosts.get(self.host_of(id))?.node(id)
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        let host = self.host_of(id);
        self.hosts.get_mut(host)?.node_mut(id)
    }
}

/// The engine of each host.
pub struct Engines {
    #[allow(
        clippy::vec_box,
        reason = "an engine is large, and changes places with those of hosts that wait"
    )]
    all: Vec<Box<Engine>>,
    /// What takes the rig's place in telling hosts of others' nodes.
    members: Option<Members>,
    /// Epochs of the nodes that other hosts were told are up.
    known: Vec<Option<u32>>,
}

impl Engines {
    pub(crate) fn new(nodes: &mut Nodes) -> Self {
        let mut engines = Self {
            all: nodes.hosts.iter().map(|_| Box::default()).collect(),
            members: None,
            known: nodes.ids().map(|_| None).collect(),
        };
        if nodes.mode.is_pooled() {
            let members = Members::new(&nodes.shared, nodes.max_nodes(), nodes.mode);
            for (id, host) in (0u16..).zip(&mut nodes.hosts) {
                for other in (0..host.peers.len()).filter(|other| *other != usize::from(id)) {
                    host.peers[other] = Some(Peer::new(id, members.link(id)));
                }
            }
            engines.members = Some(members);
        }
        engines
    }

    /// Those of all hosts, in their order.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Box<Engine>> {
        self.all.into_iter()
    }

    /// Calls `f` for a host; others may have their turns meanwhile.
    fn on<R>(
        &mut self,
        nodes: &mut Nodes,
        host: usize,
        f: impl FnOnce(&mut Engine, &mut HostNodes) -> R,
    ) -> R {
        let hosts = self.all.drain(..).zip(nodes.hosts.drain(..));
        let counted =
            |engine: &mut Engine, nodes: &mut HostNodes| nodes.counted(|nodes| f(engine, nodes));
        let (result, hosts) = nodes.shared.on(hosts.map(Some).collect(), host, counted);
        (self.all, nodes.hosts) = hosts.into_iter().flatten().unzip();
        result
    }

    /// Calls `f` for a node's host.
    pub fn at<R>(
        &mut self,
        nodes: &mut Nodes,
        id: u16,
        f: impl FnOnce(&mut Engine, &mut HostNodes) -> R,
    ) -> R {
        let host = nodes.host_of(id);
        self.on(nodes, host, f)
    }

    /// Does what is due at one host. Returns whether something was taken off links or put there, and when to come again.
    pub fn run_host(&mut self, nodes: &mut Nodes, host: usize) -> (bool, Option<u64>) {
        let (found, next) = self.on(nodes, host, |engine, host| host.run(engine));
        self.tell(nodes);
        (found | nodes.shared.take_found(), next)
    }

    /// The nodes' places in the pool.
    pub fn members(&mut self) -> &mut Members {
        self.members.as_mut().expect("there is a pool")
    }

    /// Where in the pool the device memory that a node offers lies, if there is a pool.
    pub fn device_memory(&self, node: u16) -> Option<Range<u64>> {
        Some(self.members.as_ref()?.device_memory(node))
    }

    /// Lets nodes look around in the pool.
    pub fn tick_all(&mut self, nodes: &mut Nodes) {
        if let Some(mut members) = self.members.take() {
            members.tick_all(self, nodes);
            self.members = Some(members);
        }
    }

    /// Tells hosts which nodes of others have come and gone.
    pub fn tell(&mut self, nodes: &mut Nodes) {
        if nodes.hosts.len() == 1 {
            return;
        }
        if let Some(mut members) = self.members.take() {
            members.tell(self, nodes);
            self.members = Some(members);
            return;
        }
        for id in nodes.ids() {
            let there = nodes.node(id).filter(|(node, _)| node.is_up());
            let epoch = there.map(|(node, _)| node.epoch());
            if self.known[usize::from(id)] == epoch {
                continue;
            }
            for other in nodes.ids().filter(|other| *other != id) {
                for (end, node) in [(other, id), (id, other)] {
                    self.at(nodes, end, |engine, host| {
                        engine.peer_down(host, node);
                        let peer = host.peer_mut(node).expect("there is a link");
                        peer.link_mut().queues().clear();
                    });
                }
                if let Some((up, known)) = epoch.zip(self.known[usize::from(other)]) {
                    for (end, node, epoch) in [(other, id, up), (id, other, known)] {
                        self.at(nodes, end, |engine, host| {
                            engine.peer_up(host, node, epoch);
                        });
                    }
                }
            }
            self.known[usize::from(id)] = epoch;
        }
    }

    pub fn kick(&mut self, nodes: &mut Nodes, id: u16, page: u32, slot: u16) {
        self.at(nodes, id, |engine, host| {
            engine.kick(host, id, page, slot);
        });
    }

    pub fn push_kick(&mut self, nodes: &mut Nodes, id: u16, page: u32, slot: u16, index: u32) {
        self.at(nodes, id, |engine, host| {
            engine.push_kick(host, id, page, slot, index);
        });
    }

    pub fn enable(&mut self, nodes: &mut Nodes, id: u16) {
        self.at(nodes, id, |engine, host| engine.enable(host, id));
        self.tell(nodes);
    }

    pub fn reset(&mut self, nodes: &mut Nodes, id: u16) {
        self.at(nodes, id, |engine, host| engine.reset(host, id));
        self.tell(nodes);
    }

    pub fn set_link(&mut self, nodes: &mut Nodes, id: u16, up: bool) {
        self.at(nodes, id, |engine, host| engine.set_link(host, id, up));
        self.tell(nodes);
    }

    pub fn poll(&mut self, nodes: &mut Nodes, id: u16) -> bool {
        self.at(nodes, id, |engine, host| engine.poll(host, id))
    }

    pub fn set_polled(&mut self, nodes: &mut Nodes, id: u16, polled: bool) -> bool {
        self.at(nodes, id, |engine, host| {
            engine.set_polled(host, id, polled)
        })
    }

    pub fn modify_qp(
        &mut self,
        nodes: &mut Nodes,
        id: u16,
        body: &ModifyQp,
    ) -> Result<(), AdminStatus> {
        self.at(nodes, id, |engine, host| engine.modify_qp(host, id, body))
    }

    pub fn destroy_qp(&mut self, nodes: &mut Nodes, id: u16, qpn: u32) -> Result<(), AdminStatus> {
        self.at(nodes, id, |engine, host| engine.destroy_qp(host, id, qpn))
    }

    pub fn modify_mr(
        &mut self,
        nodes: &mut Nodes,
        id: u16,
        body: &ModifyMr,
    ) -> Result<u32, AdminStatus> {
        self.at(nodes, id, |engine, host| engine.modify_mr(host, id, body))
    }

    pub fn destroy_mr(&mut self, nodes: &mut Nodes, id: u16, key: u32) -> Result<(), AdminStatus> {
        self.at(nodes, id, |engine, host| engine.destroy_mr(host, id, key))
    }

    pub fn writers_gone(&mut self, nodes: &mut Nodes, id: u16) -> bool {
        self.at(nodes, id, |engine, host| engine.writers_gone(host, id))
    }

    pub fn map_grant(
        &mut self,
        nodes: &mut Nodes,
        id: u16,
        qpn: u32,
        key: u32,
    ) -> Option<MappedGrant> {
        self.at(nodes, id, |engine, host| {
            engine.map_grant(host, id, qpn, key)
        })
    }

    pub fn is_granted(&mut self, nodes: &mut Nodes, id: u16, mapped: &MappedGrant) -> bool {
        self.at(nodes, id, |engine, host| {
            engine.is_granted(host, id, mapped)
        })
    }

    pub fn unmap_grant(&mut self, nodes: &mut Nodes, id: u16, mapped: &MappedGrant) {
        self.at(nodes, id, |engine, host| engine.unmap_grant(host, mapped));
    }
}
