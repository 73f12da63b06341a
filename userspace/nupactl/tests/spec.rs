// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The generic netlink family's specification says what module and programs do.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use nupa_proto::admin::PORT_COUNTER_NAMES;
use nupa_proto::netlink::{
    command, controller, counters, memory, peer, ControllerState, FAMILY, MONITOR,
};
use nupa_proto::pool::sharing::DmHandle;
use serde::Deserialize;

#[derive(Deserialize)]
struct Spec {
    name: String,
    definitions: Vec<Definition>,
    #[serde(rename = "attribute-sets")]
    attribute_sets: Vec<AttributeSet>,
    operations: Listed<Operation>,
    #[serde(rename = "mcast-groups")]
    groups: Listed<Named>,
}

#[derive(Deserialize)]
struct Listed<T> {
    list: Vec<T>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Definition {
    name: String,
    entries: Vec<Named>,
}

#[derive(Deserialize)]
struct AttributeSet {
    name: String,
    attributes: Vec<Attribute>,
}

#[derive(Deserialize)]
struct Attribute {
    name: String,
    r#type: String,
    #[serde(default)]
    checks: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Operation {
    name: String,
    #[serde(default)]
    flags: Vec<String>,
}

fn spec() -> Spec {
    let text = include_str!("../../../Documentation/netlink/specs/nupa.yaml");
    serde_yaml_ng::from_str(text).unwrap()
}

fn names(named: &[Named]) -> Vec<&str> {
    named.iter().map(|named| named.name.as_str()).collect()
}

/// Attributes of a set; their numbers count from 1.
fn attributes(name: &str) -> Vec<(u16, String, String)> {
    let set = spec()
        .attribute_sets
        .into_iter()
        .find(|set| set.name == name)
        .unwrap();
    let attributes = set.attributes.into_iter();
    (1..)
        .zip(attributes)
        .map(|(number, attribute)| (number, attribute.name, attribute.r#type))
        .collect()
}

fn expected(attributes: &[(u16, &str, &str)]) -> Vec<(u16, String, String)> {
    let owned = |(number, name, kind): &(u16, &str, &str)| {
        (*number, (*name).to_owned(), (*kind).to_owned())
    };
    attributes.iter().map(owned).collect()
}

#[test]
fn family_group_and_commands() {
    let spec = spec();
    assert_eq!(spec.name, FAMILY.to_str().unwrap());
    assert_eq!(names(&spec.groups.list), [MONITOR.to_str().unwrap()]);
    let listed: Vec<_> = (1u8..)
        .zip(&spec.operations.list)
        .map(|(number, operation)| (number, operation.name.as_str()))
        .collect();
    let expected = [
        (command::CONTROLLER_GET, "controller-get"),
        (command::PEER_GET, "peer-get"),
        (command::COUNTERS_GET, "counters-get"),
        (command::CONTROLLER_NTF, "controller-ntf"),
        (command::CONTROLLER_DEL_NTF, "controller-del-ntf"),
        (command::PEER_UP_NTF, "peer-up-ntf"),
        (command::PEER_DOWN_NTF, "peer-down-ntf"),
        (command::CONTROLLER_DRAIN, "controller-drain"),
        (command::MEMORY_CREATE, "memory-create"),
        (command::MEMORY_ATTACH, "memory-attach"),
        (command::MEMORY_REMOVE, "memory-remove"),
        (command::MEMORY_GET, "memory-get"),
        (command::CONTROLLER_POLL, "controller-poll"),
    ];
    assert_eq!(listed, expected);
}

#[test]
fn states() {
    let [definition] = &spec().definitions[..] else {
        panic!("there is one definition");
    };
    assert_eq!(definition.name, "state");
    let states = ControllerState::ALL
        .iter()
        .map(|state| (state.to_wire(), format!("{state:?}").to_lowercase()));
    let listed = (0u32..).zip(definition.entries.iter().map(|entry| entry.name.clone()));
    assert_eq!(listed.collect::<Vec<_>>(), states.collect::<Vec<_>>());
}

#[test]
fn attributes_of_controllers_and_peers() {
    assert_eq!(
        attributes("controller"),
        expected(&[
            (controller::INDEX, "index", "u32"),
            (controller::DEVICE, "device", "string"),
            (controller::STATE, "state", "u32"),
            (controller::NODE, "node", "u16"),
            (controller::MAX_NODES, "max-nodes", "u16"),
            (controller::GUID, "guid", "u64"),
            (controller::FABRIC, "fabric", "u64"),
            (controller::EPOCH, "epoch", "u32"),
            (controller::FAULT, "fault", "u32"),
            (controller::LINK_UP, "link-up", "u8"),
            (controller::LINK_SPEED, "link-speed", "u32"),
            (controller::FIRMWARE, "firmware", "string"),
            (controller::CAPABILITIES, "capabilities", "u64"),
            (controller::VECTORS, "vectors", "u32"),
            (controller::LINK_AGE, "link-age", "u64"),
            (controller::DRAINING, "draining", "u32"),
            (controller::USER_QPS, "user-qps", "u32"),
            (controller::POLL_CPU, "poll-cpu", "u32"),
        ])
    );
    assert_eq!(
        attributes("peer"),
        expected(&[
            (peer::CONTROLLER, "controller", "u32"),
            (peer::NODE, "node", "u16"),
            (peer::GUID, "guid", "u64"),
            (peer::EPOCH, "epoch", "u32"),
        ])
    );
}

#[test]
fn attributes_of_memory_devices() {
    assert_eq!(
        attributes("memory"),
        expected(&[
            (memory::CONTROLLER, "controller", "u32"),
            (memory::NAME, "name", "string"),
            (memory::SIZE, "size", "u64"),
            (memory::HANDLE, "handle", "binary"),
            (memory::NODE, "node", "u16"),
            (memory::ATTACHED, "attached", "u8"),
            (memory::OPENS, "opens", "u32"),
            (memory::FORCE, "force", "u32"),
        ])
    );
    let checks = |name: &str| {
        let sets = spec().attribute_sets.into_iter();
        let mut attributes = sets
            .filter(|set| set.name == "memory")
            .flat_map(|set| set.attributes);
        attributes
            .find(|attribute| attribute.name == name)
            .map(|attribute| attribute.checks)
    };
    assert_eq!(
        checks("name").unwrap().get("max-len"),
        Some(&memory::MAX_NAME)
    );
    assert_eq!(
        checks("handle").unwrap().get("exact-len"),
        Some(&size_of::<DmHandle>())
    );
}

/// Who may not change anything is not shown handles either.
#[test]
fn changes_and_memory_devices_are_for_those_with_the_capability() {
    let listed = spec().operations.list.into_iter();
    let privileged: Vec<_> = listed
        .filter(|operation| operation.flags.contains(&"admin-perm".to_owned()))
        .map(|operation| operation.name)
        .collect();
    assert_eq!(
        privileged,
        [
            "controller-drain",
            "memory-create",
            "memory-attach",
            "memory-remove",
            "memory-get",
            "controller-poll"
        ]
    );
}

#[test]
fn attributes_of_counters_are_the_counters_in_order() {
    let listed = attributes("counters");
    assert_eq!(
        listed[0],
        (
            counters::CONTROLLER,
            "controller".to_owned(),
            "u32".to_owned()
        )
    );
    let expected: Vec<_> = (counters::FIRST..)
        .zip(PORT_COUNTER_NAMES)
        .map(|(number, name)| (number, name.replace('_', "-"), "u64".to_owned()))
        .collect();
    assert_eq!(listed[1..], expected);
}

/// Metrics that the dashboard asks for.
#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    const GAUGES: [&str; 4] = ["controller", "controller_running", "link_up", "peers"];
    let text = include_str!("../../../Documentation/grafana/nupa.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let (_, name) = expression.split_once("nupa_").unwrap();
            let (name, _) = name.split_once('{').unwrap();
            let counter = name.strip_suffix("_total");
            let known = counter.map_or_else(
                || GAUGES.contains(&name),
                |name| PORT_COUNTER_NAMES.contains(&name),
            );
            assert!(known, "{expression}");
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
}
