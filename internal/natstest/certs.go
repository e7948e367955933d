package natstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outbox-dispatcher/outbox/internal/loopback"
)

// Certificates are the files of a certificate authority of the test's own, and
// of a server and a client that it vouches for. Each is in PEM.
type Certificates struct {
	CA         string
	ServerCert string // for 127.0.0.1 and localhost
	ServerKey  string
	ClientCert string
	ClientKey  string
}

// NewCertificates makes certificates that are valid for an hour and go with
// the test.
func NewCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test server"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(loopback.Host)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	client := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "test client"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	c := Certificates{
		CA:         filepath.Join(dir, "ca.pem"),
		ServerCert: filepath.Join(dir, "server.pem"), ServerKey: filepath.Join(dir, "server-key.pem"),
		ClientCert: filepath.Join(dir, "client.pem"), ClientKey: filepath.Join(dir, "client-key.pem"),
	}
	caKey := writeCertificate(t, ca, ca, nil, c.CA, filepath.Join(dir, "ca-key.pem"))
	writeCertificate(t, server, ca, caKey, c.ServerCert, c.ServerKey)
	writeCertificate(t, client, ca, caKey, c.ClientCert, c.ClientKey)
	return c
}

// ServerTLS returns a tls block for [WithConfig]. With verify, clients must
// show a certificate of the same authority.
func (c Certificates) ServerTLS(verify bool) string {
	return fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: %t }\n",
		c.ServerCert, c.ServerKey, c.CA, verify)
}

// writeCertificate signs a certificate with parentKey, or with its own key if
// that is nil, and returns its own key.
func writeCertificate(t testing.TB, cert, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, certFile, keyFile string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a test key: %v", err)
	}
	if parentKey == nil {
		parentKey = key
	}
	now := time.Now()
	cert.NotBefore, cert.NotAfter = now.Add(-time.Minute), now.Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatalf("make a test certificate: %v", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("make a test key: %v", err)
	}
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "PRIVATE KEY", pkcs8)
	return key
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("write a test certificate: %v", err)
	}
}
