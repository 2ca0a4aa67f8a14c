//! The gRPC services, and who gets a request.

mod cluster;
mod envelope;
mod kv;
mod maintenance;
mod native;

use std::{convert::Infallible, future::ready, sync::Arc};

use hyper::{Request, Response, body::Incoming};
use synod_api::{
    etcdserverpb::{
        cluster_server::ClusterServer, kv_server::KvServer, maintenance_server::MaintenanceServer,
    },
    synod::v1::native_server::NativeServer,
};
use tonic::{
    body::Body,
    codegen::{BoxFuture, Service as _},
};

pub(crate) use self::envelope::Store;
use self::{cluster::ClusterService, kv::KvService, maintenance::MaintenanceService, native::NativeService};
use crate::{Config, Replica};

/// The version of etcd whose API is spoken. Clients read it to see which requests they may send, so it is etcd's
/// number and not Synod's.
pub const API_VERSION: &str = "3.6.0";

/// A gRPC message may be this much larger than the largest command, as with etcd: then the answer to a command a
/// little above the limit says so in etcd's words.
const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

/// Every service of one replica. A clone is cheap; each connection has one.
#[derive(Debug)]
pub(crate) struct Services<R> {
    kv: KvServer<KvService<R>>,
    cluster: ClusterServer<ClusterService<R>>,
    maintenance: MaintenanceServer<MaintenanceService<R>>,
    native: NativeServer<NativeService<R>>,
    store: Arc<Store<R>>,
}

impl<R> Clone for Services<R> {
    fn clone(&self) -> Services<R> {
        Services {
            kv: self.kv.clone(),
            cluster: self.cluster.clone(),
            maintenance: self.maintenance.clone(),
            native: self.native.clone(),
            store: self.store.clone(),
        }
    }
}

impl<R: Replica> Services<R> {
    pub(crate) fn new(config: &Config, replica: R) -> Services<R> {
        let message_bytes_max = config.request_bytes_max.saturating_add(MESSAGE_OVERHEAD_BYTES);
        let store = Arc::new(Store::new(config, replica));
        Services {
            kv: KvServer::new(KvService::new(store.clone())).max_decoding_message_size(message_bytes_max),
            cluster: ClusterServer::new(ClusterService::new(store.clone())),
            maintenance: MaintenanceServer::new(MaintenanceService::new(store.clone())),
            native: NativeServer::new(NativeService::new(config, store.clone()))
                .max_decoding_message_size(message_bytes_max),
            store,
        }
    }

    /// The store, for pages that report on it.
    pub(crate) fn store(&self) -> &Arc<Store<R>> {
        &self.store
    }
}

impl<R: Replica> hyper::service::Service<Request<Incoming>> for Services<R> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    /// By the service's name, which is the first part of the path; the generated services look at the second.
    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let service = path.get(1..).and_then(|path| path.split_once('/')).map_or("", |(service, _)| service);
        match service {
            "etcdserverpb.KV" => self.kv.clone().call(request),
            "etcdserverpb.Cluster" => self.cluster.clone().call(request),
            "etcdserverpb.Maintenance" => self.maintenance.clone().call(request),
            "synod.v1.Native" => self.native.clone().call(request),
            _ => {
                let status = tonic::Status::unimplemented(format!("synod: {path} is not served"));
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}
