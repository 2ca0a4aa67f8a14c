//! The table of all methods of gRPC that are served: what a call of each may do, and what answers it.
//!
//! A call finds its row by its path, once, and whatever depends on the method is read there. A method that is added to
//! the table has an answer, or [`Store::answer`](crate::services::Store::answer) does not compile; a test compares the
//! rows with the files of protobuf.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MethodDescriptor};

/// All messages and services that there are.
pub(crate) static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(synod_api::DESCRIPTORS).expect("the descriptors are those of this build")
});

/// A method that is served.
#[derive(Debug)]
pub(crate) struct Method {
    /// `/package.Service/Method`.
    pub path: &'static str,
    /// The paths of its calls in the gateway, below those with which all of these begin.
    pub json: &'static [&'static str],
    /// Which sides of a call send several messages.
    pub kind: Kind,
    /// The permission that a call requires.
    pub requires: Requires,
    /// When a replica waits for what was decided before it judges the caller.
    pub waits: Waits,
    /// Whether it is served where there are several groups.
    pub groups: Groups,
    /// The place of its calls in the metrics.
    pub counted: Counted,
    /// What answers a call. It is also the number of the row.
    pub handler: Handler,
}

/// Which sides of a call send several messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    ServerStream,
    BidiStream,
}

impl Kind {
    /// Its name in the metrics of gRPC's Go library.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Unary => "unary",
            Kind::ServerStream => "server_stream",
            Kind::BidiStream => "bidi_stream",
        }
    }
}

/// The permission that a call requires, besides what the store demands of the command or query in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requires {
    /// The request shows who it is by itself, or its answer is no secret. A token is not looked at.
    Nothing,
    /// No user, but a token has to be valid if there is one.
    NoUser,
    /// A user; the store judges the rest.
    StoreDecides,
    /// A user.
    AnyUser,
    /// A user with the role root.
    Root,
}

/// When a replica, which may lag, waits for what was decided before it judges the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Never: the store judges the command in its slot, or the answer is of this replica's state.
    Never,
    /// If the caller shows a simple token, which may be void by now: the store judges the command by its user alone.
    /// These are commands of the role root.
    ForTokens,
    /// Also if users do not count here yet: nobody judges the call later. A change of the protocol is not among these,
    /// since it may be what ends an outage.
    Always,
}

/// Whether a method is served where there are several groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// It needs a single revision.
    One,
    Any,
}

/// The place of a method's calls in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// A series of its own.
    Apart,
    /// A series of its own, and among etcd's proposals: calls are writes.
    Proposal,
    /// With the calls of all other methods.
    Together,
}

impl Method {
    /// The method at this path, if it is served. The frequent ones stand first.
    pub(crate) fn at(path: &str) -> Option<&'static Method> {
        METHODS.iter().find(|method| method.path == path)
    }

    /// The name of its service, with the package, and its own.
    pub(crate) fn service_and_name(&self) -> (&'static str, &'static str) {
        self.path[1..].split_once('/').expect("a path has a service and a method")
    }

    /// Its messages. The version v1alpha of reflection has those of the other one, and no description of its own.
    pub(crate) fn descriptor(&self) -> Option<MethodDescriptor> {
        let (service, name) = self.service_and_name();
        POOL.get_service_by_name(service)?.methods().find(|found| found.name() == name)
    }

    /// Whether it belongs to the services that gRPC has for every server, which ask for nothing of the store.
    pub(crate) fn is_of_every_server(&self) -> bool {
        self.path.starts_with("/grpc.")
    }

    /// Whether its calls last as long as their clients want.
    pub(crate) fn lasts(&self) -> bool {
        use Handler::{LeaseKeepAlive, Observe, Reflect, ReflectAlpha, Watch, WatchHealth};
        matches!(self.handler, Watch | LeaseKeepAlive | Observe | WatchHealth | Reflect | ReflectAlpha)
    }

    /// Whether calls are made of commands and queries on their keys and leases, whose refusals they pass on.
    pub(crate) fn is_relayed(&self) -> bool {
        self.path.starts_with("/v3lockpb.") || self.path.starts_with("/v3electionpb.")
    }

    /// Whether a call changes something when it is executed.
    pub(crate) fn changes(&self) -> bool {
        self.counted == Counted::Proposal || self.is_relayed() && self.handler != Handler::Leader
    }
}

impl Handler {
    /// Its row of the table.
    pub(crate) fn method(self) -> &'static Method {
        &METHODS[self as usize]
    }
}

macro_rules! methods {
    ($($service:literal { $($handler:ident: $name:literal, $json:tt, $kind:ident, $requires:ident, $waits:ident,
        $groups:ident, $counted:ident;)* })*) => {
        /// What answers the calls of a method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Handler { $($($handler),*),* }

        /// In the order of the metrics.
        pub(crate) static METHODS: &[Method] = &[$($(Method {
            path: concat!("/", $service, "/", $name),
            json: &$json,
            kind: Kind::$kind,
            requires: Requires::$requires,
            waits: Waits::$waits,
            groups: Groups::$groups,
            counted: Counted::$counted,
            handler: Handler::$handler,
        }),*),*];
    };
}

// A session keeps its replies for any client that knows its number, so commands in sessions take the role root, too.
methods! {
    "etcdserverpb.KV" {
        Put: "Put", ["kv/put"], Unary, StoreDecides, Never, One, Proposal;
        Range: "Range", ["kv/range"], Unary, StoreDecides, Never, One, Apart;
    }
    "synod.v1.Native" {
        Execute: "Execute", [], Unary, Root, Never, Any, Proposal;
        Query: "Query", [], Unary, AnyUser, Never, Any, Apart;
    }
    "etcdserverpb.KV" {
        Txn: "Txn", ["kv/txn"], Unary, StoreDecides, Never, One, Proposal;
        DeleteRange: "DeleteRange", ["kv/deleterange"], Unary, StoreDecides, Never, One, Proposal;
        RangeStream: "RangeStream", ["kv/rangestream"], ServerStream, StoreDecides, Never, One, Apart;
        Compact: "Compact", ["kv/compaction"], Unary, StoreDecides, ForTokens, One, Proposal;
    }
    "etcdserverpb.Cluster" {
        MemberList: "MemberList", ["cluster/member/list"], Unary, AnyUser, Never, Any, Apart;
        MemberAdd: "MemberAdd", ["cluster/member/add"], Unary, Root, Always, Any, Proposal;
        MemberRemove: "MemberRemove", ["cluster/member/remove"], Unary, Root, Always, Any, Proposal;
        MemberUpdate: "MemberUpdate", ["cluster/member/update"], Unary, Root, Always, Any, Proposal;
        MemberPromote: "MemberPromote", ["cluster/member/promote"], Unary, Root, Always, Any, Proposal;
    }
    "etcdserverpb.Maintenance" {
        MoveLeader: "MoveLeader", ["maintenance/transfer-leadership"], Unary, Root, Never, One, Apart;
        Alarm: "Alarm", ["maintenance/alarm"], Unary, AnyUser, ForTokens, One, Proposal;
        MemberStatus: "Status", ["maintenance/status"], Unary, AnyUser, Never, Any, Apart;
        Defragment: "Defragment", ["maintenance/defragment"], Unary, Root, Never, One, Apart;
        Hash: "Hash", ["maintenance/hash"], Unary, Root, Never, One, Apart;
        HashKv: "HashKV", ["maintenance/hashkv"], Unary, Root, Never, One, Apart;
        Snapshot: "Snapshot", ["maintenance/snapshot"], ServerStream, Root, Never, One, Apart;
        Downgrade: "Downgrade", ["maintenance/downgrade"], Unary, Root, Never, One, Apart;
    }
    "etcdserverpb.Watch" {
        Watch: "Watch", ["watch"], BidiStream, StoreDecides, Never, One, Apart;
    }
    "etcdserverpb.Lease" {
        LeaseGrant: "LeaseGrant", ["lease/grant"], Unary, StoreDecides, Never, One, Proposal;
        LeaseRevoke: "LeaseRevoke", ["lease/revoke", "kv/lease/revoke"], Unary, StoreDecides, Never, One, Proposal;
        LeaseKeepAlive: "LeaseKeepAlive", ["lease/keepalive"], BidiStream, StoreDecides, Never, One, Apart;
        LeaseTimeToLive: "LeaseTimeToLive", ["lease/timetolive", "kv/lease/timetolive"], Unary, StoreDecides, Never, One, Apart;
        LeaseLeases: "LeaseLeases", ["lease/leases", "kv/lease/leases"], Unary, StoreDecides, Never, One, Apart;
    }
    "v3lockpb.Lock" {
        Lock: "Lock", ["lock/lock"], Unary, StoreDecides, Never, One, Apart;
        Unlock: "Unlock", ["lock/unlock"], Unary, StoreDecides, Never, One, Apart;
    }
    "v3electionpb.Election" {
        Campaign: "Campaign", ["election/campaign"], Unary, StoreDecides, Never, One, Apart;
        Proclaim: "Proclaim", ["election/proclaim"], Unary, StoreDecides, Never, One, Apart;
        Leader: "Leader", ["election/leader"], Unary, StoreDecides, Never, One, Apart;
        Observe: "Observe", ["election/observe"], ServerStream, StoreDecides, Never, One, Apart;
        Resign: "Resign", ["election/resign"], Unary, StoreDecides, Never, One, Apart;
    }
    "etcdserverpb.Auth" {
        AuthEnable: "AuthEnable", ["auth/enable"], Unary, StoreDecides, ForTokens, One, Proposal;
        AuthDisable: "AuthDisable", ["auth/disable"], Unary, StoreDecides, ForTokens, One, Proposal;
        AuthStatus: "AuthStatus", ["auth/status"], Unary, NoUser, Never, One, Apart;
        Authenticate: "Authenticate", ["auth/authenticate"], Unary, Nothing, Never, One, Proposal;
        UserAdd: "UserAdd", ["auth/user/add"], Unary, StoreDecides, ForTokens, One, Proposal;
        UserGet: "UserGet", ["auth/user/get"], Unary, StoreDecides, Never, One, Apart;
        UserList: "UserList", ["auth/user/list"], Unary, StoreDecides, Never, One, Apart;
        UserDelete: "UserDelete", ["auth/user/delete"], Unary, StoreDecides, ForTokens, One, Proposal;
        UserChangePassword: "UserChangePassword", ["auth/user/changepw"], Unary, StoreDecides, ForTokens, One, Proposal;
        UserGrantRole: "UserGrantRole", ["auth/user/grant"], Unary, StoreDecides, ForTokens, One, Proposal;
        UserRevokeRole: "UserRevokeRole", ["auth/user/revoke"], Unary, StoreDecides, ForTokens, One, Proposal;
        RoleAdd: "RoleAdd", ["auth/role/add"], Unary, StoreDecides, ForTokens, One, Proposal;
        RoleGet: "RoleGet", ["auth/role/get"], Unary, StoreDecides, Never, One, Apart;
        RoleList: "RoleList", ["auth/role/list"], Unary, StoreDecides, Never, One, Apart;
        RoleDelete: "RoleDelete", ["auth/role/delete"], Unary, StoreDecides, ForTokens, One, Proposal;
        RoleGrantPermission: "RoleGrantPermission", ["auth/role/grant"], Unary, StoreDecides, ForTokens, One, Proposal;
        RoleRevokePermission: "RoleRevokePermission", ["auth/role/revoke"], Unary, StoreDecides, ForTokens, One, Proposal;
    }
    "synod.v1.Native" {
        OpenSession: "OpenSession", [], Unary, Root, Never, Any, Apart;
        ReplicaStatus: "Status", [], Unary, AnyUser, Never, Any, Apart;
        Change: "Change", [], Unary, Root, Never, Any, Proposal;
        Subscribe: "Subscribe", [], ServerStream, Root, Always, Any, Apart;
        MoveGroupLeader: "MoveLeader", [], Unary, Root, Never, Any, Apart;
    }
    "grpc.health.v1.Health" {
        Health: "Check", [], Unary, Nothing, Never, Any, Together;
        AllHealths: "List", [], Unary, Nothing, Never, Any, Together;
        WatchHealth: "Watch", [], ServerStream, Nothing, Never, Any, Together;
    }
    "grpc.reflection.v1.ServerReflection" {
        Reflect: "ServerReflectionInfo", [], BidiStream, Nothing, Never, Any, Together;
    }
    "grpc.reflection.v1alpha.ServerReflection" {
        ReflectAlpha: "ServerReflectionInfo", [], BidiStream, Nothing, Never, Any, Together;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_method_of_the_files_of_protobuf_has_one_row() {
        let described: BTreeSet<_> = POOL
            .services()
            .flat_map(|service| service.methods().collect::<Vec<_>>())
            .map(|method| format!("/{}/{}", method.parent_service().full_name(), method.name()))
            .collect();
        let of_files = METHODS.iter().filter(|method| method.handler != Handler::ReflectAlpha);
        let rows: Vec<_> = of_files.map(|method| method.path.to_owned()).collect();
        assert_eq!(rows.len(), described.len());
        assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), described);
        for method in METHODS {
            assert!(std::ptr::eq(method.handler.method(), method), "{}", method.path);
            assert!(std::ptr::eq(Method::at(method.path).unwrap(), method));
            let Some(described) = method.descriptor() else { continue };
            let kind = match (described.is_client_streaming(), described.is_server_streaming()) {
                (false, false) => Kind::Unary,
                (false, true) => Kind::ServerStream,
                (true, true) => Kind::BidiStream,
                (true, false) => panic!("no method is of this kind"),
            };
            assert_eq!(method.kind, kind, "{}", method.path);
        }
        assert!(Method::at("/etcdserverpb.KV/Guess").is_none());
    }

    #[test]
    fn calls_without_a_user_are_few_and_each_path_of_the_gateway_has_one_method() {
        let open = |method: &&Method| {
            let is_open = matches!(method.requires, Requires::Nothing | Requires::NoUser);
            is_open && !method.is_of_every_server()
        };
        let open: Vec<_> = METHODS.iter().filter(open).map(|method| method.handler).collect();
        assert_eq!(open, [Handler::AuthStatus, Handler::Authenticate]);
        use Handler::{Change, Defragment, Execute, MemberAdd, OpenSession, Snapshot, Subscribe};
        for handler in [Execute, OpenSession, Subscribe, Change, MemberAdd, Snapshot, Defragment] {
            assert_eq!(handler.method().requires, Requires::Root, "{handler:?}");
        }
        assert_eq!(Handler::UserAdd.method().requires, Requires::StoreDecides);
        let paths: Vec<_> = METHODS.iter().flat_map(|method| method.json).collect();
        assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), paths.len());
        let without: Vec<_> = METHODS.iter().filter(|method| method.json.is_empty()).collect();
        assert!(without.iter().all(|one| one.is_of_every_server() || one.path.starts_with("/synod.v1.")));
    }
}
