"""SPDX list of the packages that made a corpus or a model, as JSON of SPDX 2.3 (ISO/IEC 5962)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpt2train import __version__
from gpt2train.store.manifest import digest

NOT_DISTRIBUTIONS = frozenset({"libxml2", "python", "unicodedata"})  # names in manifests that the package index lacks
NOT_KNOWN = "NOASSERTION"
UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)  # the format has no unknown time


def spdx(name: str, versions: Mapping[str, str], made: datetime | None) -> dict[str, Any]:
    """Return the list of the packages that have made `name` at a time, UTC, None if that was not recorded.

    Several versions of a package are joined by ", ".
    """
    pairs = [(package, version) for package, several in sorted(versions.items()) for version in several.split(", ")]
    packages = [_package(number, *pair) for number, pair in enumerate(pairs)]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/gpt2train-{digest([name, pairs])}",
        "creationInfo": {
            "created": (made or UNKNOWN_TIME).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: gpt2train-{__version__}"],
            **({} if made else {"comment": "The time was not recorded."}),
        },
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": package["SPDXID"],
            }
            for package in packages
        ],
    }


def _package(number: int, name: str, version: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "SPDXID": f"SPDXRef-Package-{number}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": NOT_KNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": NOT_KNOWN,
        "licenseDeclared": NOT_KNOWN,
        "copyrightText": NOT_KNOWN,
    }
    if name not in NOT_DISTRIBUTIONS and version != "none":
        locator = f"pkg:pypi/{name.lower().replace('_', '-')}@{version.replace('+', '%2B')}"
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
        found["externalRefs"] = [reference]
    return found
