// Package queue runs azqueue, the client of Storage Queue.
package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azqueue/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azqueue/v2/queueerror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azqueue/v2/sas"

	"pairgate/interop/place"
)

// The account and the key of the emulators, which their documentation publishes.
const (
	account = "devstoreaccount1"
	key     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

func options() *azqueue.ClientOptions {
	return &azqueue.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: place.HTTP()}}
}

func service(t *testing.T) *azqueue.ServiceClient {
	credential, err := azqueue.NewSharedKeyCredential(account, key)
	place.Good(t, err)
	url := fmt.Sprintf("https://%s/%s/", place.Address(), account)
	made, err := azqueue.NewServiceClientWithSharedKeyCredential(url, credential, options())
	place.Good(t, err)
	return made
}

func created(t *testing.T) *azqueue.QueueClient {
	queue := service(t).NewQueueClient(fmt.Sprintf("q%d", time.Now().UnixNano()))
	_, err := queue.Create(place.Soon(t), &azqueue.CreateOptions{Metadata: map[string]*string{"mine": to.Ptr("yes")}})
	place.Good(t, err)
	return queue
}

func TestAQueueIsMadeListedAndDeleted(t *testing.T) {
	queue := created(t)
	told, err := queue.GetProperties(place.Soon(t), nil)
	place.Good(t, err)
	found := 0
	for pager := service(t).NewListQueuesPager(nil); pager.More(); {
		page, err := pager.NextPage(place.Soon(t))
		place.Good(t, err)
		found += len(page.Queues)
	}
	_, err = queue.Delete(place.Soon(t), nil)
	place.Good(t, err)
	_, gone := queue.GetProperties(place.Soon(t), nil)

	place.Same(t, *told.ApproximateMessagesCount, 0)
	place.Same(t, found > 0, true)
	place.Same(t, queueerror.HasCode(gone, queueerror.QueueNotFound), true)
}

func TestAMessageIsPutTakenChangedAndDeleted(t *testing.T) {
	queue := created(t)
	_, err := queue.EnqueueMessage(place.Soon(t), "text", nil)
	place.Good(t, err)
	peeked, err := queue.PeekMessage(place.Soon(t), nil)
	place.Good(t, err)
	taken, err := queue.DequeueMessage(place.Soon(t), &azqueue.DequeueMessageOptions{VisibilityTimeout: to.Ptr(int32(30))})
	place.Good(t, err)
	got := taken.Messages[0]
	changed, err := queue.UpdateMessage(place.Soon(t), *got.MessageID, *got.PopReceipt, "new text",
		&azqueue.UpdateMessageOptions{VisibilityTimeout: to.Ptr(int32(0))})
	place.Good(t, err)
	again, err := queue.DequeueMessage(place.Soon(t), nil)
	place.Good(t, err)
	_, stale := queue.DeleteMessage(place.Soon(t), *got.MessageID, *changed.PopReceipt, nil)
	_, err = queue.DeleteMessage(place.Soon(t), *got.MessageID, *again.Messages[0].PopReceipt, nil)
	place.Good(t, err)

	place.Same(t, *peeked.Messages[0].MessageText, "text")
	place.Same(t, *got.DequeueCount, 1)
	place.Same(t, *again.Messages[0].MessageText, "new text")
	place.Same(t, *again.Messages[0].DequeueCount, 2)
	place.Same(t, queueerror.HasCode(stale, queueerror.PopReceiptMismatch), true)
}

func TestManyMessagesAreTakenAtOnceAndCleared(t *testing.T) {
	queue := created(t)
	for i := range 5 {
		_, err := queue.EnqueueMessage(place.Soon(t), fmt.Sprint(i), nil)
		place.Good(t, err)
	}
	taken, err := queue.DequeueMessages(place.Soon(t), &azqueue.DequeueMessagesOptions{NumberOfMessages: to.Ptr(int32(3))})
	place.Good(t, err)
	_, err = queue.ClearMessages(place.Soon(t), nil)
	place.Good(t, err)
	left, err := queue.PeekMessages(place.Soon(t), nil)
	place.Good(t, err)

	place.Same(t, len(taken.Messages), 3)
	place.Same(t, len(left.Messages), 0)
}

func TestASignatureAllowsWhatItSaysAndNoMore(t *testing.T) {
	queue := created(t)
	url, err := queue.GetSASURL(sas.QueuePermissions{Add: true}, time.Now().Add(time.Hour), nil)
	place.Good(t, err)
	limited, err := azqueue.NewQueueClientWithNoCredential(url, options())
	place.Good(t, err)
	_, err = limited.EnqueueMessage(place.Soon(t), "text", nil)
	place.Good(t, err)

	_, refused := limited.DequeueMessage(place.Soon(t), nil)

	place.Same(t, queueerror.HasCode(refused, queueerror.AuthorizationPermissionMismatch), true)
}

func TestAnAccessPolicyIsStored(t *testing.T) {
	queue := created(t)
	policy := &azqueue.SignedIdentifier{ID: to.Ptr("one"), AccessPolicy: &azqueue.AccessPolicy{
		Expiry: to.Ptr(time.Now().Add(time.Hour)), Permission: to.Ptr("r"),
	}}
	_, err := queue.SetAccessPolicy(place.Soon(t), &azqueue.SetAccessPolicyOptions{QueueACL: []*azqueue.SignedIdentifier{policy}})
	place.Good(t, err)

	told, err := queue.GetAccessPolicy(place.Soon(t), nil)

	place.Good(t, err)
	place.Same(t, *told.SignedIdentifiers[0].ID, "one")
}

func TestAQueueThatExistsWithOtherMetadataIsAConflict(t *testing.T) {
	queue := created(t)

	_, err := queue.Create(place.Soon(t), nil)

	place.Same(t, queueerror.HasCode(err, queueerror.QueueAlreadyExists), true)
}
