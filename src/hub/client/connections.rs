//! Connections to the servers that requests go to: through which proxy, and with which certificate
//! authorities.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use super::RequestError;
use crate::hub::certificates;
use crate::hub::proxy::Proxy;
use crate::hub::url::Origin;

/// How requests reach a server.
#[derive(Clone)]
pub(super) struct Route {
    pub agent: Agent,
    /// The variable that names the proxy; `None` without a proxy.
    pub proxy_variable: Option<String>,
}

/// The connections of a client, by server.
pub(super) struct Connections {
    routes: RefCell<HashMap<Origin, Route>>,
    /// Maximum time of each step of a request.
    timeout: Duration,
}

impl Connections {
    pub(super) fn new(timeout: Duration) -> Self {
        Connections { routes: RefCell::default(), timeout }
    }

    /// The connections to a server, with the certificate authorities that the environment configures.
    pub(super) fn to(&self, server: &Origin) -> Result<Route, RequestError> {
        let known = self.routes.borrow().get(server).cloned();
        known.map_or_else(|| self.with_roots(server, certificates::configured), Ok)
    }

    /// New connections to a server, with these certificate authorities, which are read if a connection is
    /// encrypted.
    pub(super) fn with_roots(
        &self,
        server: &Origin,
        roots: impl FnOnce() -> Result<RootCerts, String>,
    ) -> Result<Route, RequestError> {
        let proxy = Proxy::of(server).map_err(RequestError::Setting)?;
        let is_tls = server.0 == "https" || proxy.as_ref().is_some_and(Proxy::is_tls);
        let roots = if is_tls { roots().map_err(RequestError::Setting)? } else { RootCerts::WebPki };
        let (proxy, proxy_variable) = proxy.map(|proxy| (proxy.proxy, proxy.variable)).unzip();
        let timeout = Some(self.timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            .timeout_per_write(timeout)
            .user_agent(concat!("sconce/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        let route = Route { agent: config.new_agent(), proxy_variable };
        self.routes.borrow_mut().insert(server.clone(), route.clone());
        Ok(route)
    }
}
