#!/usr/bin/env python3
"""Checks an exported run of bernstein. One file, standard library only, no code of bernstein.

    python3 verify.py BUNDLE.zip [KEY_FINGERPRINT]

Take this file from a release, not from the party that you audit, and get the fingerprint of the key
that must have sealed the run from them by another way. It says and exits with

    0  verified: the run is complete and unchanged since the key with this fingerprint sealed it
    1  mismatch: something does not hold; what, is printed; or flagged: all of it holds, and says that
       the model's context was changed though the run asked for that not to be
    2  it holds in itself, but no fingerprint was given, so anybody can have made it

What is checked, in order: each row's spelling and hash chain; the number of rows, the last hash and
the file's bytes against the seal; the recorded calls, fixtures and decisions against the seal; run.json
against the seal; the signature of the seal; the run's entry in the signed log (its hash, its path to
the root of the checkpoint, the checkpoint's signature). The formats are in docs/spec.md.
"""

import base64
import hashlib
import json
import re
import sys
import zipfile
import zlib

# --- Ed25519 (RFC 8032), verification only

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def point_add(a, b):
    aa, bb = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    cc, dd = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = bb - aa, dd - cc, dd + cc, bb + aa
    return e * f % P, g * h % P, f * g % P, e * h % P


def point_mul(n, a):
    result = (0, 1, 1, 0)
    while n > 0:
        if n & 1:
            result = point_add(result, a)
        a, n = point_add(a, a), n >> 1
    return result


def same_point(a, b):
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def recover_x(y, sign):
    if y >= P:
        return None
    xx = (y * y - 1) * pow(D * y * y + 1, P - 2, P)
    x = pow(xx, (P + 3) // 8, P)
    if (x * x - xx) % P:
        x = x * ROOT % P
    if (x * x - xx) % P or (x == 0 and sign):
        return None
    return P - x if x & 1 != sign else x


def decompress(data):
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    x = recover_x(y, sign)
    return None if x is None else (x, y, 1, x * y % P)


BASE_Y = 4 * pow(5, P - 2, P) % P
BASE = (recover_x(BASE_Y, 0), BASE_Y, 1, recover_x(BASE_Y, 0) * BASE_Y % P)


def is_signed(public, signature, message):
    if len(public) != 32 or len(signature) != 64:
        return False
    a, r, s = (
        decompress(public),
        decompress(signature[:32]),
        int.from_bytes(signature[32:], "little"),
    )
    if a is None or r is None or s >= Q:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % Q
    return same_point(point_mul(s, BASE), point_add(r, point_mul(h, a)))


# --- canonical JSON (RFC 8785, with lone surrogates as \udXXX)


class Broken(Exception):
    """What does not hold."""


def no_twice(pairs):
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Broken("a JSON object has one key twice")
    return value


def parse(data):
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=no_twice)
    except (ValueError, RecursionError) as error:
        raise Broken(f"not JSON: {error}") from error


def text(value):
    quoted = json.dumps(value, ensure_ascii=False)
    quoted = re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", quoted)
    return quoted


def number(value):
    if value == 0:
        return "0"
    sign, value = ("-", -value) if value < 0 else ("", value)
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    rest = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def canonical(value):
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return "{" + ",".join(text(name) + ":" + canonical(value[name]) for name in names) + "}"


def jcs(value):
    return canonical(value).encode("utf-8")


def sha(data):
    return hashlib.sha256(data).hexdigest()


def unhex(text_):
    expect(re.fullmatch("[0-9a-f]*", text_), "hex in another spelling than lower case")
    return bytes.fromhex(text_)


def digest_ref(data):
    return {"byteLength": len(data), "digest": sha(data)}


def is_ref(value):
    """A body by its digest; ``encRef`` names the encrypted one, which is checked by that name."""
    return isinstance(value, dict) and value.keys() - {"encRef"} == {"byteLength", "digest"}


def expect(holds, what):
    if not holds:
        raise Broken(what)


# --- the parts


def check_mutation(payload, index):
    """Whether a changed context is flagged, once the row's address is that of what it says."""
    said = parse(payload)
    covered = {name: said[name] for name in ("kind", "before_digest", "after_digest", "step_index")}
    address = sha(b"bernstein.mutation.v1\n" + jcs(covered))
    expect((said["address"], said["step_index"]) == (address, index), f"row {index}: address")
    return said["flagged"] is True


def check_journal(data):
    head, rows, flagged, others = "0" * 64, 0, [], []
    *lines, rest = data.split(b"\n")
    expect(rest == b"", f"row {len(lines)}: torn")
    for index, line in enumerate(lines):
        start = line.find(b'"payload":') + len(b'"payload":')
        end = line.rfind(b',"payload_hash":"')
        payload = line[start:end]
        expect(start > 10 and payload[:1] == b"{", f"row {index}: no payload")
        row = parse(line[:start] + b"null" + line[end:])  # inside it the chain vouches for bytes
        event, lane = row["event"], row["lane"]
        expect(re.fullmatch("[a-z][a-z0-9_.]{0,63}", event), f"row {index}: event")
        expect(re.fullmatch("[A-Za-z0-9._/-]{0,128}", lane), f"row {index}: lane")
        hashed = sha(f"bernstein.payload.v1\n{event}\n{lane}\n".encode() + payload)
        chained = sha(f"bernstein.event.v1\n{head}\n{event}\n{hashed}\n{index}".encode())
        expect((row["index"], row["prev_hash"]) == (index, head), f"row {index}: order")
        expect(row["payload_hash"] == hashed, f"row {index}: payload")
        expect(row["event_hash"] == chained, f"row {index}: event hash")
        spelled = (
            f'{{"index":{index},"event":"{event}","lane":"{lane}","payload":'.encode()
            + payload
            + f',"payload_hash":"{hashed}","prev_hash":"{head}","event_hash":"{chained}",'
            f'"ts":"{row["ts"]}","elapsed_s":{row["elapsed_s"]:.6f}}}'.encode()
        )
        expect(line == spelled, f"row {index}: spelling")
        if event == "provider_state_mutation":
            (flagged if check_mutation(payload, index) else others).append(str(index))
        head, rows = chained, rows + 1
    return head, rows, flagged, others


def digest_of_text(stored, seq, kept, keep, blobs):
    """The digest of a text that may stand as what it adds to one of the ``keep`` before it."""
    if is_ref(stored):
        if stored["digest"] in blobs:
            text_ = blobs[stored["digest"]].decode("utf-8", "surrogatepass")
            kept[:] = [(seq, text_), *kept][:keep]
        return stored
    if isinstance(stored, dict):
        bases = [base for number_, base in kept if number_ == stored["seq"]]
        expect(bases, "a text adds to one that is not there")
        end = len(bases[0]) - stored["tail"]
        stored = bases[0][: stored["head"]] + stored["text"] + bases[0][end:]
    if len(stored) > 1024:
        kept[:] = [(seq, stored), *kept][:keep]
    return digest_ref(stored.encode("utf-8", "surrogatepass"))


def digest_form(name, data, blobs):
    """Rows and digest of a recording file with each body replaced by the digest of its text."""
    *lines, rest = data.split(b"\n")
    expect(rest == b"", f"{name}: torn")
    groups, hashed = {}, hashlib.sha256()
    for line in lines:
        row = parse(line)
        expect(jcs(row) == line, f"{name}: not in canonical spelling")
        if name == "llm_calls":
            kept = groups.setdefault(row["lane"], [])
            row["prompt"] = digest_of_text(row["prompt"], row["seq"], kept, 1, blobs)
            if not is_ref(row["outcome"]):
                row["outcome"] = digest_ref(jcs(row["outcome"]))
        elif name == "exchanges":
            kept = groups.setdefault((row["method"], row["origin"], row["path"]), [])
            row["request"] = digest_of_text(row["request"], row["seq"], kept, 8, blobs)
            if not is_ref(row["response"]):
                row["response"] = digest_ref(row["response"].encode("utf-8"))
        elif name == "fixtures":
            for member in ("request", "response"):
                if member in row and not is_ref(row[member]):
                    row[member] = digest_ref(jcs(row[member]))
        hashed.update(jcs(row) + b"\n")
    return {"rows": len(lines), "digest_form_sha256": hashed.hexdigest()}


def check_inclusion(leaf, index, size, path, root):
    """RFC 9162, 2.1.3.2."""
    expect(0 <= index < size, "the log's proof has no such entry")
    number_, last, found = index, size - 1, leaf
    for part in path:
        expect(last > 0, "the log's proof is too long")
        if number_ & 1 or number_ == last:
            found = hashlib.sha256(b"\1" + part + found).digest()
            while not number_ & 1 and number_:
                number_, last = number_ >> 1, last >> 1
        else:
            found = hashlib.sha256(b"\1" + found + part).digest()
        number_, last = number_ >> 1, last >> 1
    expect(last == 0 and found == root, "the entry is not under the checkpoint's root")


def check_log(proof, seal_data, run_id, public):
    entry = dict(proof["entry"])
    entry_hash, sig = entry.pop("entry_hash"), entry.pop("sig")
    expect(sha(b"bernstein.spine.v1\n" + jcs(entry)) == entry_hash, "the log entry's hash")
    message = f"bernstein.spine.v1\n{entry_hash}".encode()
    expect(is_signed(public, unhex(sig), message), "the log entry's signature")
    expect(entry["kind"] in ("run", "received"), "the log entry is not that of a run")
    expect(
        entry["run_id"] == run_id and entry["seal_sha256"] == sha(seal_data), "another log entry"
    )
    body, _, signatures = proof["checkpoint"].partition("\n\n")
    origin, size, root = body.split("\n")
    expect(origin == f"bernstein/spine/{sha(public)}", "the checkpoint is that of another log")
    dash, name, encoded = signatures.rstrip("\n").split(" ")
    raw = base64.b64decode(encoded, validate=True)
    expect(base64.b64encode(raw).decode() == encoded, "base64 in another spelling")
    key_hash = hashlib.sha256(name.encode() + b"\n\1" + public).digest()[:4]
    expect(dash == "\u2014" and name == origin and raw[:4] == key_hash, "the checkpoint's signer")
    expect(is_signed(public, raw[4:], f"{body}\n".encode()), "the checkpoint's signature")
    leaf = hashlib.sha256(b"\0" + unhex(entry_hash)).digest()
    path = [unhex(part) for part in proof["inclusion"]]
    check_inclusion(leaf, entry["index"], int(size), path, base64.b64decode(root, validate=True))


def check_bundle(path):
    """The fingerprint of the key that sealed the run in a bundle, a line on it, flagged rows."""
    with zipfile.ZipFile(path) as bundle:
        names = bundle.namelist()
        expect(len(set(names)) == len(names), "a member is there twice")
        expect(sum(i.file_size for i in bundle.infolist()) < 2**32, "too large for this verifier")
        run_id = names[0].split("/")[0]
        files = {name.removeprefix(f"{run_id}/"): bundle.read(name) for name in names}
    for name in ("journal.jsonl", "seal.json", "proof.json", "run.json"):
        expect(name in files, f"{name} is not there")
    blobs = {}
    for name, data in files.items():
        if name.startswith("blobs/"):
            expect(sha(data) == name.removeprefix("blobs/"), f"{name}: other bytes")
            blobs[sha(data)] = data
    head, rows, flagged, others = check_journal(files["journal.jsonl"])
    seal, proof = parse(files["seal.json"]), parse(files["proof.json"])
    expect(jcs(seal) + b"\n" == files["seal.json"], "seal.json: spelling")
    expect(jcs(proof) + b"\n" == files["proof.json"], "proof.json: spelling")
    expect(seal["run_id"] == run_id, "the seal is that of another run")
    expect(seal["count"] == rows, f"sealed with {seal['count']} rows, there are {rows}")
    expect(seal["head"] == head, "another chain was sealed")
    expect(seal["journal_sha256"] == sha(files["journal.jsonl"]), "times in the journal")
    expect(seal["run_sha256"] == sha(files["run.json"]), "run.json")
    is_deterministic = parse(files["run.json"]).get("seed") is not None
    wrong = others if is_deterministic else flagged
    expect(
        not wrong, f"row {wrong[0] if wrong else ''}: flagged though the run has no seed, or not"
    )
    if "body_key.json" in files:
        said = parse(files["run.json"])["body_key_sha256"]
        expect(said == sha(files["body_key.json"]), "the wrapped key of the bodies")
    found = {
        name: digest_form(name, files[f"{name}.jsonl"], blobs)
        for name in ("llm_calls", "exchanges", "fixtures", "wal")
        if f"{name}.jsonl" in files
    }
    expect(found == seal["recordings"], "the recordings are not those that were sealed")
    public = unhex(proof["public_key"])
    expect(sha(public) == seal["key_id"], "the seal names another key")
    signature = unhex(seal.pop("sig"))
    expect(is_signed(public, signature, b"bernstein.seal.v1\n" + jcs(seal)), "the seal's signature")
    check_log(proof, files["seal.json"], run_id, public)
    return sha(public), f"run {run_id}, {seal['status']}, {rows} rows, head {head}", flagged


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__)
        return 2
    try:
        fingerprint, run, flagged = check_bundle(arguments[0])
        if len(arguments) == 2:
            expect(fingerprint == arguments[1].lower(), f"sealed by another key: {fingerprint}")
    except Broken as error:
        print(f"mismatch: {error}")
        return 1
    except (
        OSError,
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RuntimeError,
        NotImplementedError,
        EOFError,
        zlib.error,
    ) as error:
        print(f"mismatch: this is not a bundle: {error!r}")
        return 1
    if len(arguments) == 1:
        print(
            f"holds in itself: {run}\nsealed by {fingerprint}: give the fingerprint that it must be"
        )
        return 2
    if flagged:
        print(
            f"flagged: {run}\nsealed by {fingerprint}\na changed context: row {', '.join(flagged)}"
        )
        return 1
    print(f"verified: {run}\nsealed by {fingerprint}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
