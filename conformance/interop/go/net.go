package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// net/http over HTTP/2 alone: by prior knowledge, or by ALPN for https.
func netClient(base string) error {
	transport := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: transport}
	var group sync.WaitGroup
	failed := make(chan error, 100)
	for range 100 {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := netPost(client, base); err != nil {
				failed <- err
			}
		}()
	}
	group.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	response, err := client.Get(base + "/nothing")
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNotFound || response.ProtoMajor != 2 {
		return fmt.Errorf("%s over %s", response.Status, response.Proto)
	}
	return nil
}

func netPost(client *http.Client, base string) error {
	body := bytes.Repeat([]byte("wireloom"), 20_000)
	response, err := client.Post(base+"/echo", "text/plain", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	back, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 || !bytes.Equal(back, body) {
		return fmt.Errorf("%s over %s, %d of %d bytes", response.Status, response.Proto, len(back), len(body))
	}
	return nil
}

func netEcho(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	w.Header().Set("Trailer", "X-Proto")
	io.Copy(w, r.Body)
	w.Header().Set("X-Proto", r.Proto)
}
