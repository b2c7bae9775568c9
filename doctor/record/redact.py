"""Take out of texts what tells whose machine it is: the same value becomes the same placeholder everywhere."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Redactor"]

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|(?:API|ACCESS|PRIVATE|_)_?KEY\b", re.I)
_KEYS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|nvapi-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{4,}\.[\w-]*)"
)
_ASSIGNED = re.compile(
    r"(?i)\b((?:api[_-]?key|token|secret|password|passwd|credentials?|authorization|bearer)\s*[=:]\s*(?:bearer\s+|basic\s+|token\s+)?|bearer\s+)"
    r"([^\s,;&'\"]{4,})"
)
# NAME=value, as compilers are told: -DSERVICE_PW=...
_ASSIGNED_NAME = re.compile(
    r"((?<![A-Za-z0-9])[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD?|API_?KEY|_KEY|CREDENTIALS?)=)"
    r"([^\s,;&'\"/]{4,})"
)
_LONG = re.compile(r"(?<![\w/+.-])[A-Za-z0-9+/_-]{40,}={0,2}(?![\w/+.-])")
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_HOMES = re.compile(
    r"(?:/home|/Users|/mnt/[a-z]/Users|/export/home|/var/home)/[^/\s:,;'\"\\<>]+|[A-Za-z]:\\Users\\[^\\\s:;'\"<>]+"
)
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_UUID_PART = re.compile(r"\b((?:MIG-)?GPU-|MIG-)([0-9a-fA-F][0-9a-fA-F-]*)(?![0-9a-fA-F-])")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?![\w:])")
_SERIAL = re.compile(
    r"(?i)(\b(?:serial|board[ _]?id|asset[ _]?tag|wwid|wwn|\w+_serial)[\w \t]*[=:>]\s*)([^\s<,;\"]{4,})"
)
_WORLD_WIDE = re.compile(r"\b(?:eui|naa|uuid|t10|wwn|nvme)[.-](?:0x)?[0-9A-Za-z.]{12,}\b")
_PROCESS = re.compile(r"(<process_name>)([^<]+)(</process_name>)")
# A row of nvidia-smi's table: GPU, GI, CI, PID, type, name, memory.
_PROCESS_ROW = re.compile(r"(?m)^(\|\s+\d+\s+(?:(?:N/A|\d+)\s+){2}\d+\s+[CGM+]+\s+)(\S.*?)(\s+\S+\s*\|)$")
_PROCESS_FIELD = re.compile(r"(?m)^(\s*Name\s+:\s)(/.+|[^\s].*)$")
_MOUNT_USER = re.compile(r"\b(user(?:name)?|domain)=([^,\s]+)")
_REMOTE_SOURCE = re.compile(
    r"( - (?:nfs4?|cifs|smb3|smbfs|fuse\.sshfs|ceph|glusterfs|fuse\.glusterfs|lustre|beegfs) )(\S+)"
)
_AT = re.compile(r"\b[\w.+-]+@[\w.-]*\w")
_IDENTIFIER = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{32}){1,2}(?![0-9A-Za-z])|(?:(?<=docker-)|(?<=docker/)|(?<=crio-))[0-9a-f]{12,63}"
)
_COMMON_USERS = frozenset(
    ("root", "user", "admin", "nobody", "daemon", "ubuntu", "debian", "test", "home", "data", "nvidia", "jetson")
)
_COMMON_HOSTS = frozenset(("localhost", "local", "linux", "ubuntu", "debian", "host", "none"))
_LEAST_LETTERS = 3  # a shorter name is in every other word


class Redactor:
    """Replace by type: `<home>`, `<user>`, `<host>`, `<uuid-1>`, `<serial-1>`, `<mac-1>`, `<ip-1>`, `<secret-1>` ...

    ``home``, ``user``, ``hosts``: of this user and machine. ``variables``: the environment, whose values are secrets
    where their names say so. Texts are shown first (`learn`): a UUID of one may stand cut in another.
    """

    def __init__(
        self,
        home: str | None = None,
        user: str | None = None,
        hosts: Iterable[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._placeholders: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._literals: dict[str, str] = {}
        self._home: re.Pattern[str] | None = None
        if home and home.strip("/\\"):
            home = home.rstrip("/\\")
            self._placeholder("home", home)
            self._home = re.compile(re.escape(home) + r"(?![\w.-])")
        for name, value in sorted((variables or {}).items()):
            if _SECRET_NAME.search(name) and len(value) >= 6:
                self._literals[value] = self._placeholder("secret", value)
        self._words: dict[str, str] = {}
        if user and len(user) >= _LEAST_LETTERS and user.casefold() not in _COMMON_USERS:
            self._words[user] = "<user>"
        for host in hosts:
            for name in (host, host.partition(".")[0]):
                if len(name) >= _LEAST_LETTERS and name.casefold() not in _COMMON_HOSTS:
                    self._words[name] = "<host>"
        self._uuids: list[str] = []

    def learn(self, texts: Iterable[str]) -> None:
        """Note the UUIDs and process names in ``texts``: part of one may stand elsewhere."""
        for text in texts:
            for found in _UUID.findall(text):
                if found.casefold() not in self._uuids:
                    self._uuids.append(found.casefold())
                    self._placeholder("uuid", found.casefold())

    def process(self, name: str) -> str:
        """Return what stands for the name of a process, wherever a tool tells it."""
        return self._placeholder("process", name.strip())

    def text(self, text: str) -> str:
        """Return ``text`` with placeholders."""
        for literal in sorted(self._literals, key=len, reverse=True):
            text = text.replace(literal, self._literals[literal])
        if self._home is not None:
            text = self._home.sub("<home>", text)
        text = _KEYS.sub(lambda m: self._placeholder("secret", m[0]), text)
        text = _ASSIGNED.sub(lambda m: m[1] + self._kept_or("secret", m[2]), text)
        text = _ASSIGNED_NAME.sub(lambda m: m[1] + self._kept_or("secret", m[2]), text)
        text = _USERINFO.sub(lambda m: self._placeholder("secret", m[0][:-1]) + "@", text)
        text = _REMOTE_SOURCE.sub(lambda m: m[1] + self._placeholder("remote", m[2]), text)
        text = _MOUNT_USER.sub(lambda m: f"{m[1]}={self._kept_or('user', m[2])}", text)
        text = _HOMES.sub(lambda m: self._placeholder("home", m[0]), text)
        for word, placeholder in self._words.items():
            # A host goes with its domain. Names are parts of names: model-of-alice, alice_models.
            domain = r"(?:\.[A-Za-z0-9-]*[A-Za-z][A-Za-z0-9-]*)*" if placeholder == "<host>" else ""
            text = re.sub(rf"(?<![A-Za-z0-9<]){re.escape(word)}{domain}(?![A-Za-z0-9>])", placeholder, text)
        text = _AT.sub(lambda m: self._placeholder("user", m[0]), text)
        text = _PROCESS.sub(lambda m: m[1] + self._placeholder("process", m[2].strip()) + m[3], text)
        text = _PROCESS_ROW.sub(lambda m: m[1] + self._placeholder("process", m[2].strip()) + m[3], text)
        text = _PROCESS_FIELD.sub(lambda m: m[1] + self._placeholder("process", m[2].strip()), text)
        text = _SERIAL.sub(self._serial, text)
        text = _UUID.sub(lambda m: self._placeholder("uuid", m[0].casefold()), text)
        text = _UUID_PART.sub(self._uuid_part, text)
        text = _WORLD_WIDE.sub(lambda m: self._placeholder("serial", m[0]), text)
        text = _MAC.sub(lambda m: self._placeholder("mac", m[0].casefold()), text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        text = _IDENTIFIER.sub(lambda m: self._placeholder("id", m[0]), text)
        return _LONG.sub(self._random, text)

    def plain(self, data: Any) -> Any:
        """Return plain data with every text in it, keys too, replaced."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, (list, tuple)):
            return [self.plain(item) for item in data]
        if isinstance(data, dict):
            return {self.text(str(key)): self.plain(value) for key, value in data.items()}
        return data

    def _placeholder(self, kind: str, value: str) -> str:
        known = self._placeholders.get((kind, value))
        if known is None:
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            # There is one home as a rule, and a path with it should stay readable.
            known = f"<{kind}>" if kind == "home" and number == 1 else f"<{kind}-{number}>"
            self._placeholders[kind, value] = known
        return known

    def _kept_or(self, kind: str, value: str) -> str:
        return value if value.startswith("<") else self._placeholder(kind, value)

    def _serial(self, match: re.Match[str]) -> str:
        value = match[2]
        if value.startswith("<") or value.casefold() in ("[n/a]", "n/a", "none", "unknown", "disabled"):
            return match[0]
        return match[1] + self._placeholder("serial", value)

    def _uuid_part(self, match: re.Match[str]) -> str:
        part = match[2].casefold().rstrip("-")
        found = [uuid for uuid in self._uuids if uuid.startswith(part)]
        return match[1] + (self._placeholder("uuid", found[0]) if len(found) == 1 else "<uuid-part>")

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if address.is_loopback or address.is_unspecified:
            return match[0]
        return self._placeholder("ip", str(address))

    def _random(self, match: re.Match[str]) -> str:
        value = match[0]
        kinds: tuple[Callable[[str], bool], ...] = (str.islower, str.isupper, str.isdigit)
        # Paths and names have no mixture of all three; hashes are lower case only.
        mixed = all(any(kind(letter) for letter in value) for kind in kinds) and value.count("/") < 3
        return self._placeholder("secret", value) if mixed else value
