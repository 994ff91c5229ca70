"""Proxies as the environment names them: HTTP_PROXY, HTTPS_PROXY and what NO_PROXY takes out.

aiohttp would do this itself, and then also send what stands in ~/.netrc, and ask in threads that a loop waits
for when it closes.
"""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from ..errors import ConfigError

__all__ = ["proxy_for"]


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy that a request must take; it may hold a password.

    Raises:
        ConfigError: the proxy is of a kind that is not spoken here.
    """
    parts = urlsplit(url)
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.netloc.rpartition("@")[2]
    if not proxy or _is_left_out(host, proxies):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    kind = proxy.partition("://")[0].lower()
    if kind not in ("http", "https"):
        raise ConfigError(
            f"the environment names a proxy of kind {kind[:10]!r} for {parts.scheme}, which is not spoken "
            "here; name an http proxy, or take the host out with NO_PROXY"
        )
    return proxy


def _is_left_out(host: str, proxies: dict[str, str]) -> bool:
    # typeshed does not know it, though it is there since Python 2.6
    return bool(urllib.request.proxy_bypass_environment(host, proxies))  # type: ignore[attr-defined]
